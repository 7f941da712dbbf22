"""The training step: what rows change about a model is undone, and ratios are to the plain rows around them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attentiondrop.bench.attention import Settings
from attentiondrop.bench.records import FAILED, SKIPPED, TIMED, VitOutcome, failed
from attentiondrop.bench.report import Report
from attentiondrop.bench.rows import CannotRunError, SdpaRow
from attentiondrop.bench.shapes import Shape
from attentiondrop.bench.table import select
from attentiondrop.errors import ArgumentError

timm = pytest.importorskip("timm")

from attentiondrop.bench import vit  # noqa: E402
from attentiondrop.bench.vit_rows import VitRow, attention_dropout, attention_modules, sdpa_replaced, vit_rows  # noqa: E402


@pytest.fixture
def model() -> nn.Module:
    return timm.create_model("test_vit", num_classes=1000).train()


@pytest.fixture
def about() -> dict[str, Any]:
    return {"row": "row", "kind": "plain"}


@pytest.fixture
def bench(settings: Settings) -> vit.Bench:
    return vit.Bench.of("test_vit", 2, settings)


def test_rows_change_the_attention_and_undo_it(bench: vit.Bench) -> None:
    shape = bench.attention_shape()
    assert (shape.batch, shape.heads, shape.size) == (2, 2, 32)
    before = [type(module) for module in bench.model.modules()]
    homes = {vars(__import__(type(m).__module__, fromlist=["F"]))["F"] for m in attention_modules(bench.model)}
    outputs = {}
    for row in vit_rows():
        torch.manual_seed(0)
        with row.change(bench.model):
            outputs[row.name] = bench.model(bench.images).detach()
        assert [type(module) for module in bench.model.modules()] == before
    assert homes == {F}
    plain = outputs.pop("SDPA")
    for name, output in outputs.items():
        assert not torch.equal(output, plain), name
    torch.testing.assert_close(bench.model(bench.images), plain)


def test_changes_are_undone_after_an_error(model: nn.Module) -> None:
    rates = [module.attn_drop.p for module in attention_modules(model)]
    for change in (attention_dropout(model, 0.5), sdpa_replaced(model, lambda q, k, v: q)):
        with pytest.raises(RuntimeError), change:
            raise RuntimeError
    assert [module.attn_drop.p for module in attention_modules(model)] == rates
    import timm.layers.attention as home

    assert home.F is F


def test_models_that_do_not_fit(settings: Settings) -> None:
    with pytest.raises(ArgumentError, match=r"model: expected the name of a timm model, .* received 'vit_nonsense'"):
        vit.Bench.of("vit_nonsense", 1, settings)
    with pytest.raises(ArgumentError, match="a timm vision transformer with fused attention, received 'Linear'"):
        attention_modules(nn.Linear(1, 1))
    resnet = vit.Bench.of("test_resnet", 1, settings)
    with pytest.raises(ArgumentError, match="a model that calls scaled_dot_product_attention, received 'ResNet'"):
        resnet.attention_shape()


def test_a_run(settings: Settings, make_report: Callable[[], Report], listener: Any) -> None:
    report = make_report()
    rows = select(vit_rows(), ["SDPA", "hard(p=0.1*"])
    outcomes = vit.run_vit("test_vit", 2, rows, ["eager"], settings, report, listener)
    assert [outcome.row for outcome in outcomes] == ["SDPA", "hard(p=0.1,k=5)", "SDPA, again"]
    assert not failed(outcomes), [outcome.remark() for outcome in outcomes]
    assert listener.planned == 3 == listener.done[-1]
    first, ours, last = outcomes
    assert first.step_ms and last.step_ms and ours.step_ms and ours.ratio
    assert ours.ratio == pytest.approx((first.step_ms + last.step_ms) / 2 / ours.step_ms)
    assert ours.images_per_second == pytest.approx(2000 / ours.step_ms)
    assert "since the first" in last.note
    lines = list(csv.DictReader(report.csv.read_text(encoding="utf-8").splitlines()))
    assert [line["mode"] for line in lines] == ["eager"] * 3 and lines[1]["model"] == "test_vit"
    assert "## test_vit, batch 2, float32, eager" in report.markdown.read_text(encoding="utf-8")


def test_ratios_and_drift() -> None:
    def row(name: str, kind: str, milliseconds: float | None, gib: float | None) -> VitOutcome:
        return VitOutcome(name, kind, TIMED if milliseconds else SKIPPED, step_ms=milliseconds, peak_gib=gib)

    found = [row("a", "plain", 90.0, 10.0), row("b", "ours", 50.0, 12.0), row("c", "ours", None, None)]
    a, b, c, again = vit.compared([*found, row("a", "plain", 110.0, 10.0)], again=1)
    assert (b.ratio, b.memory_ratio, a.ratio, c.ratio) == (2.0, 1.2, pytest.approx(10 / 9), None)
    assert again.row == "a, again"
    assert again.note == "step time +22.2 % since the first, too much to trust the ratios"
    assert "trust" not in vit.compared([found[0], row("a", "plain", 91.0, None)], again=1)[-1].note
    (alone,) = vit.compared([found[1]], again=0)
    assert alone.ratio is None


def broken(error: Exception) -> Callable[[nn.Module], Any]:
    def change(model: nn.Module) -> Any:
        raise error

    return change


@pytest.mark.parametrize(
    ("kind", "error", "status", "note"),
    [
        ("ours", RuntimeError("why"), FAILED, "RuntimeError: why"),
        ("paper", RuntimeError("why"), SKIPPED, "RuntimeError: why"),
        ("ours", torch.OutOfMemoryError("big"), SKIPPED, "out of memory"),
        ("paper", CannotRunError("too large"), SKIPPED, "too large"),
    ],
)
def test_errors_belong_to_the_row(
    kind: str, error: Exception, status: str, note: str, bench: vit.Bench, settings: Settings, about: dict[str, Any]
) -> None:
    row = VitRow("row", kind, SdpaRow(), broken(error))
    outcome = vit.run_row(bench, row, "eager", Shape(2, 2, 8, 8), settings, about | {"kind": kind})
    assert (outcome.status, outcome.note, outcome.step_ms) == (status, note, None)


def test_a_wrong_attention_or_loss_gets_no_timing(bench: vit.Bench, settings: Settings, about: dict[str, Any]) -> None:
    class Wrong(SdpaRow):
        def build(self, shape: Shape, tensors: Any) -> Any:
            right = super().build(shape, tensors)
            return lambda q, k, v: 2 * right(q, k, v)

    row = VitRow("row", "plain", Wrong(), lambda model: nullcontext())
    outcome = vit.run_row(bench, row, "eager", Shape(2, 2, 8, 8), settings, dict(about))
    assert outcome.status == FAILED and outcome.error == pytest.approx(1.0)

    row = VitRow("row", "plain", SdpaRow(), lambda model: sdpa_replaced(model, lambda q, k, v: v * torch.nan))
    outcome = vit.run_row(bench, row, "eager", Shape(2, 2, 8, 8), settings, dict(about))
    assert (outcome.status, outcome.note) == (FAILED, "the loss is nan")


def test_compiled_modes_leave_the_model_as_it_was(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[nn.Module] = []

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    def fake(inner: nn.Module, dynamic: bool) -> nn.Module:
        seen.append(inner)
        return Wrapped(inner)

    monkeypatch.setattr("torch.compile", fake)
    blocks = model.blocks
    x = torch.randn(1, 3, 160, 160)
    with vit.forward_of(model, "blocks") as forward:
        assert model.blocks is not blocks
        torch.testing.assert_close(forward(x), forward(x))
    assert model.blocks is blocks and seen == list(blocks)
    seen.clear()
    with vit.forward_of(model, "compiled") as forward:
        assert forward(x).shape == (1, 1000)
    assert seen == [model]


@pytest.fixture(autouse=True)
def quiet_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()
