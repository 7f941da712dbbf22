"""Rows: each passes its own check, wrong ones do not, and what cannot run says why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from attentiondrop.bench import listings
from attentiondrop.bench.attention import Settings, prepare
from attentiondrop.bench.check import SEED, Trial, affordable, plain_attention
from attentiondrop.bench.flex import FlexHardRow, FlexRow, decide, flex, flex_hard, hard_reference
from attentiondrop.bench.records import FAILED, SKIPPED, TIMED
from attentiondrop.bench.rows import (
    KINDS,
    SPECS,
    CannotRunError,
    ListingRow,
    OursRow,
    Row,
    SdpaRow,
    one_line,
    refuse_large_logits,
)
from attentiondrop.bench.shapes import CUDA_SHAPES, Shape
from attentiondrop.bench.table import all_rows, select
from attentiondrop.bench.tensors import make_tensors
from attentiondrop.errors import ArgumentError
from attentiondrop.parsing import parse
from attentiondrop.specs import REGISTRY

SHAPES = [Shape(2, 4, 24, 8), Shape(2, 4, 24, 8, causal=True, key_heads=2)]


def trial_of(row: Row, shape: Shape, part: Shape | None = None) -> Trial:
    tensors = make_tensors(shape, "cpu", torch.float32)
    return Trial(row.build(shape, tensors), shape, tensors, part or shape, row.build)


def test_every_regulariser_has_a_row() -> None:
    outside = {"compose", "oneof", "consistency"}
    assert {parse(text).name for text in SPECS} == set(REGISTRY) - outside
    rows = all_rows()
    assert [row.kind for row in rows] == sorted((row.kind for row in rows), key=KINDS.index)
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "row",
    [SdpaRow(), SdpaRow("math"), SdpaRow("flash"), SdpaRow(dropout=0.1), ListingRow("hard masking"), ListingRow("blur")]
    + [OursRow(text) for text in SPECS],
    ids=lambda row: row.name,
)
def test_every_row_passes_its_check(row: Row, shape: Shape) -> None:
    verdict = row.check(trial_of(row, shape))
    assert verdict.passed, verdict
    assert verdict.text


@pytest.mark.parametrize("text", SPECS)
def test_the_first_samples_draw_the_same_as_alone(text: str) -> None:
    shape = SHAPES[0]
    verdict = OursRow(text).check(trial_of(OursRow(text), shape, replace(shape, batch=1)))
    assert verdict.passed and "first 1x4 of it" in verdict.text


def test_fewer_heads_or_rows_are_run_alone() -> None:
    shape, row = SHAPES[0], OursRow("drophead(p=0.5)")
    for part in (Shape(1, 2, 24, 8), Shape(1, 1, 12, 8)):
        verdict = row.check(trial_of(row, shape, part))
        assert verdict.passed and f"at {part}" in verdict.text
    verdict = SdpaRow().check(trial_of(SdpaRow(), shape, Shape(1, 2, 24, 8)))
    assert verdict.passed and "first 1x2 of it" in verdict.text


def test_the_part_that_a_reference_can_afford(monkeypatch: pytest.MonkeyPatch) -> None:
    assert affordable(Shape(64, 12, 197, 64), "cpu").batch == 6

    class H200:
        total_memory = 150 * 10**9

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda: H200)
    parts = [affordable(shape, "cuda") for shape in CUDA_SHAPES]
    assert [str(part) for part in parts] == [
        "256x12x197x64",
        "16x16x1024x64",
        "1x16x4096x64",
        "1x1x16384x128",
        "2x32x2048x128 causal, 8 key heads",
        "32x8x128x64",
    ]


class Wrong(SdpaRow):
    """Right up to a factor, or not a number, or an error; as a row of ours."""

    kind = "ours"

    def __init__(self, factor: float, kind: str = "ours") -> None:
        super().__init__()
        self.name, self.kind, self.factor = f"wrong by {factor}", kind, factor

    def build(self, shape: Shape, tensors: object) -> object:
        right = super().build(shape, tensors)
        if self.factor == 0:

            def broken(*inputs: torch.Tensor) -> torch.Tensor:
                raise RuntimeError("no such kernel in /usr/lib/somewhere/file.py")

            return broken
        return lambda q, k, v: right(q, k, v) * self.factor


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_wrong_row_gets_no_timing(factor: float, settings: Settings) -> None:
    shape = SHAPES[0]
    prepared = prepare(Wrong(factor), shape, make_tensors(shape, "cpu", torch.float32), settings)
    assert prepared.timed is None
    assert prepared.outcome["status"] == FAILED
    assert math.isnan(prepared.outcome["error"]) or prepared.outcome["error"] == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(("kind", "status"), [("ours", FAILED), ("plain", SKIPPED)])
def test_an_error_is_a_failure_of_ours_only(kind: str, status: str, settings: Settings) -> None:
    shape = SHAPES[0]
    prepared = prepare(Wrong(0, kind), shape, make_tensors(shape, "cpu", torch.float32), settings)
    assert prepared.timed is None
    assert prepared.outcome["status"] == status
    assert prepared.outcome["note"] == "RuntimeError: no such kernel in file.py"


def test_out_of_memory_is_no_failure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("attentiondrop.bench.attention.warmed", full)
    prepared = prepare(OursRow("hard"), SHAPES[0], make_tensors(SHAPES[0], "cpu", torch.float32), settings)
    assert prepared.outcome["status"] == SKIPPED and prepared.outcome["note"] == "out of memory"


def test_dropout_that_does_not_drop_fails() -> None:
    row = SdpaRow(dropout=0.1)
    trial = trial_of(row, SHAPES[0])
    calm = trial_of(SdpaRow(), SHAPES[0])
    assert not row.check(trial._replace(attend=calm.attend, build=calm.build)).passed

    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return trial.attend(q, k, v.flip(1))

    assert not row.check(trial._replace(build=lambda shape, tensors: other)).passed


def test_what_cannot_run_says_why(settings: Settings) -> None:
    shape = SHAPES[0]
    tensors = make_tensors(shape, "cpu", torch.float32)
    with pytest.raises(CannotRunError, match="dropout"):
        SdpaRow("flash", dropout=0.1).build(shape, tensors)
    with pytest.raises(CannotRunError, match="No viable backend"):
        SdpaRow("cudnn").build(shape, tensors)
    for row in (FlexRow(), FlexHardRow()):
        assert prepare(row, shape, tensors, settings).outcome["note"] == "torch has its backward on CUDA only"
    with pytest.raises(CannotRunError, match="its logits need about 32 GiB, more than 24 GiB"):
        refuse_large_logits(Shape(1, 16, 16384, 128), itemsize=2, tensors=4)
    refuse_large_logits(Shape(4, 16, 4096, 64), itemsize=2, tensors=6)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flex_rows_are_what_they_say(shape: Shape) -> None:
    # Their backward runs on a GPU only: see test_on_a_gpu.
    tensors = make_tensors(shape, "cpu", torch.float64)
    part = replace(shape, batch=1, heads=2, key_heads=shape.key_heads // 2)
    small = tensors.cut(part)
    for x in (*tensors, *small):
        x.requires_grad_(False)
    with torch.no_grad():
        want = plain_attention(*tensors.inputs, shape.causal)
        torch.testing.assert_close(flex(shape, tensors, flex_attention)(*tensors.inputs), want)
        got = flex_hard(shape, tensors, flex_attention)(*tensors.inputs)
        torch.testing.assert_close(got, hard_reference(shape, tensors)(*tensors.inputs))
        torch.testing.assert_close(got[:1, :2], hard_reference(part, small)(*small.inputs))
    assert not torch.allclose(got, want)


def test_flex_rows_on_a_gpu_are_compiled_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda function, dynamic: plain_flex)
    shape = SHAPES[0]
    tensors = make_tensors(shape, "cpu", torch.float32)

    def plain_flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        return plain_attention(q, k, v, causal=False)

    monkeypatch.setattr("attentiondrop.bench.flex.refuse_cpu", lambda tensors: None)
    plain_row, hard_row = FlexRow(), FlexHardRow()
    exact = Trial(plain_row.build(shape, tensors), shape, tensors, shape, plain_row.build)
    assert plain_row.check(exact).passed
    # The same function is no hard masking.
    assert not hard_row.check(exact._replace(attend=hard_row.build(shape, tensors))).passed


def test_flex_drops_at_the_rate_among_the_largest() -> None:
    lines, columns = torch.arange(4000, dtype=torch.int32)[:, None], torch.arange(50, dtype=torch.int32)
    assert decide(lines, columns, 0.1).float().mean().item() == pytest.approx(0.1, abs=0.005)
    short = Shape(1, 1, 4, 8)
    tensors = make_tensors(short, "cpu", torch.float64)
    everything = hard_reference(short, tensors, p=1.0)(*tensors.inputs)
    torch.testing.assert_close(everything, tensors.v.mean(2, keepdim=True).expand_as(everything))


def test_listings_see_no_hidden_key() -> None:
    q, k, v, _ = make_tensors(Shape(1, 2, 12, 8), "cpu", torch.float64)
    for listing in (listings.hard_masking, listings.blur):
        torch.manual_seed(SEED)
        output = listing(q, k, v, causal=True)
        changed = v.detach().clone()
        changed[:, :, 6:] = 9.0
        torch.manual_seed(SEED)
        torch.testing.assert_close(listing(q, k, changed, causal=True)[:, :, :6], output[:, :, :6])
    assert not torch.allclose(listings.hard_masking(q, k, v), plain_attention(q, k, v, causal=False))


def test_select_keeps_the_order_of_the_table() -> None:
    rows = all_rows()
    assert [row.name for row in select(rows, ["hard*", "SDPA"])] == ["SDPA", SPECS[1], SPECS[2]]
    assert select(rows, None) == rows
    with pytest.raises(ArgumentError, match=r"rows: expected shell patterns that match some of: SDPA, .*'hrad\*'"):
        select(rows, ["SDPA", "hrad*"])


def test_one_line() -> None:
    assert one_line("\n first\nsecond") == "first"
    assert one_line("see /opt/x/y.py and a/b") == "see y.py and a/b"
    assert one_line("") == "no message"
    assert len(one_line("x" * 999)) == 200


def test_a_compiled_row_is_checked_and_timed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fake(function: object, dynamic: bool) -> object:
        seen.append(function.__code__)
        return function

    monkeypatch.setattr("torch.compile", fake)
    tensors = make_tensors(SHAPES[0], "cpu", torch.float32)
    for row in (SdpaRow(), OursRow("hard")):
        outcome = prepare(row, SHAPES[0], tensors, replace(settings, compile=True)).outcome
        assert outcome["status"] == TIMED
    assert len({id(code) for code in seen}) == 2
