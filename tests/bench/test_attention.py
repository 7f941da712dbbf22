"""A whole run: turns, ratios, files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attentiondrop.bench.attention import Settings, fastest, numbers, prepare, run_attention
from attentiondrop.bench.clock import clock_for, peak_extra
from attentiondrop.bench.records import FAILED, SKIPPED, TIMED, failed
from attentiondrop.bench.report import Report
from attentiondrop.bench.rows import OursRow, SdpaRow
from attentiondrop.bench.shapes import Shape
from attentiondrop.bench.table import all_rows, select
from attentiondrop.bench.tensors import make_tensors
from attentiondrop.bench.turns import LEAST, Samples, Timed, take_turns, warmed
from attentiondrop.errors import ArgumentError

SMALL = [Shape(1, 2, 16, 8), Shape(1, 2, 8, 8, causal=True, key_heads=1)]


class Half(OursRow):
    """A row of ours that computes half of what it should."""

    def build(self, shape: Shape, tensors: Any) -> Any:
        right = super().build(shape, tensors)
        return lambda q, k, v: right(q, k, v) / 2


def test_a_run_writes_every_row(settings: Settings, make_report: Callable[[], Report], listener: Any) -> None:
    report = make_report()
    rows = [*select(all_rows(), ["SDPA", "SDPA cudnn", "SDPA dropout 0.1", "paper's blur"]), OursRow("hard")]
    outcomes = run_attention(SMALL, [*rows, Half("dropkey(p=0.1)")], settings, report, listener)
    assert failed(outcomes)
    assert [outcome.status for outcome in outcomes] == [TIMED, SKIPPED, TIMED, TIMED, TIMED, FAILED] * 2
    assert listener.planned == 24 == listener.done[-1]
    assert listener.done == sorted(listener.done)
    assert any("dropkey(p=0.1): FAILED CHECK: relative error 0.5, allowed 0.0001" in line for line in listener.lines)

    lines = list(csv.DictReader(report.csv.read_text(encoding="utf-8").splitlines()))
    assert len(lines) == len(outcomes)
    first, wrong = lines[0], lines[5]
    assert (first["row"], first["kind"], first["status"], first["length"]) == ("SDPA", "plain", TIMED, "16")
    assert first["plain_base"] == "SDPA" and float(first["plain_ratio"]) == 1.0
    assert float(first["step_ms_20"]) <= float(first["step_ms"]) <= float(first["step_ms_80"])
    assert first["extra_mib"] == ""
    assert first["repeats"] == "3"
    assert (first["device"], first["torch"], first["commit"]) == ("NVIDIA H200", "2.11.0+cu130", "abc1234")
    assert wrong["status"] == FAILED and wrong["error"] == "0.5"
    assert not wrong["step_ms"] and not wrong["plain_ratio"] and not wrong["forward_ms"]
    assert lines[-2]["causal"] == "True" and lines[-2]["key_heads"] == "1" and lines[-2]["path"] in ("eager", "fused")

    page = report.markdown.read_text(encoding="utf-8")
    for part in (
        "# Title",
        "- device: NVIDIA H200 (driver 580.1, CUDA 13.0)",
        "- versions: attentiondrop 0.1.0, torch 2.11.0+cu130, triton 3.6.0, timm 1.0.30, Python 3.12.3",
        "- commit abc1234, 2026-11-15 05:00 UTC",
        "- command: `attentiondrop bench attention`",
        "How to read.",
        "## 1x2x16x8\n",
        "## 1x2x8x8 causal, 1 key heads\n",
        "| row | path | fwd ms |",
        "| dropkey(p=0.1) |  | FAILED CHECK | - | - | - | - | - |",
        "- SDPA cudnn: cannot run: No viable backend",
        "/ plain: to SDPA; / dropout: to SDPA dropout 0.1",
        '- checked: output and gradients against float64 backend="eager", same seed: hard(p=0.1,k=5) ',
    ):
        assert part in page
    assert "/tmp" not in page and str(report.folder) not in report.csv.read_text(encoding="utf-8")


def test_what_was_measured_survives_a_killed_run(
    settings: Settings, make_report: Callable[[], Report], listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make_report()

    def killed(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listener, "say", killed)
    with pytest.raises(KeyboardInterrupt):
        run_attention(SMALL, [SdpaRow()], settings, report, listener)
    assert len(report.csv.read_text(encoding="utf-8").splitlines()) == 2
    assert "## 1x2x16x8" in report.markdown.read_text(encoding="utf-8")
    make_report()
    assert not report.csv.exists()  # the next run starts anew


def test_ratios_are_taken_within_repeats() -> None:
    samples = {
        "slow": Samples([1.0, 1.0], [2.0, 4.0]),
        "a": Samples([1.0] * 3, [1.0, 2.0, 9.0]),
        "b": Samples([1.0] * 3, [3.0, 3.0, 3.0]),
        "c": Samples([0.5, 0.5], [0.5, 0.4]),
    }
    kinds = {"slow": "ours", "a": "plain", "b": "plain", "c": "dropout"}
    assert (fastest("plain", kinds, samples), fastest("dropout", kinds, samples)) == ("a", "c")
    assert fastest("paper", kinds, samples) == ""
    timed = Timed(int, int, extra_bytes=3 * 2**20, seconds=1.0)
    found = numbers("slow", timed, samples, {"plain": "a", "dropout": "c"})
    assert found["plain_ratio"] == found["plain_ratio_20"] == found["plain_ratio_80"] == 2.0
    assert found["dropout_ratio"] == pytest.approx((4 + 10) / 2)
    assert found["dropout_ratio_20"] == pytest.approx(4 + 0.2 * 6)
    assert (found["step_ms"], found["forward_ms"], found["extra_mib"], found["repeats"]) == (3000.0, 1000.0, 3.0, 2)
    assert "plain_ratio" not in numbers("slow", timed, samples, {"plain": "", "dropout": "c"})
    assert numbers("slow", None, samples, {}) == {}


def test_rows_take_turns_and_slow_ones_stop_early() -> None:
    order: list[str] = []
    shares: list[float] = []
    rows = {
        name: Timed(
            lambda name=name: order.append(f"{name}1"), lambda name=name: order.append(f"{name}2"), None, seconds
        )
        for name, seconds in (("a", 0.01), ("b", 10.0))
    }
    samples = take_turns(rows, clock_for("cpu"), repeats=8, seconds=1.0, tick=shares.append)
    assert order[:6] == ["a1", "a2", "b1", "b2", "a1", "a2"]
    assert (len(samples["a"].step), len(samples["b"].step)) == (8, LEAST)
    assert shares[-1] == 1.0
    assert take_turns({}, clock_for("cpu"), 8, 1.0, shares.append) == {}
    few = take_turns(rows, clock_for("cpu"), repeats=2, seconds=1.0, tick=shares.append)
    assert len(few["b"].forward) == 2


def test_the_forward_is_timed_without_gradients() -> None:
    modes = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        modes.append(torch.is_grad_enabled())
        return q * k * v

    timed = warmed(attend, make_tensors(Shape(1, 1, 2, 2), "cpu", torch.float32), clock_for("cpu"))
    modes.clear()
    timed.forward(), timed.step()
    assert modes == [False, True]
    assert timed.seconds > 0 and timed.extra_bytes is None


@pytest.mark.parametrize(("gigabytes", "captured"), [(1, True), (3, False)])
def test_a_row_that_is_too_large_for_a_graph_says_so(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, captured: bool
) -> None:
    monkeypatch.setattr("attentiondrop.bench.turns.captured", lambda work: work)
    monkeypatch.setattr("attentiondrop.bench.turns.peak_extra", lambda work, device: gigabytes << 30)
    settings = Settings("cpu", "float32")
    object.__setattr__(settings, "graph", True)
    shape = Shape(1, 1, 4, 4)
    prepared = prepare(SdpaRow(), shape, make_tensors(shape, "cpu", torch.float32), settings)
    assert prepared.timed is not None and prepared.timed.graph == captured
    assert prepared.outcome.get("note", "").startswith("" if captured else "timed without a CUDA graph")
    assert ("note" in prepared.outcome) != captured
    assert numbers("a", prepared.timed, {"a": Samples([1.0], [1.0])}, {})["graph"] == captured


def test_settings_that_cannot_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ArgumentError, match="device: expected 'cpu', since torch sees no CUDA device"):
        Settings("cuda", "bfloat16")
    with pytest.raises(ArgumentError, match="graph: expected device 'cuda', received 'cpu'"):
        Settings("cpu", "float32", graph=True)


class FakeCuda:
    """What the clock and the memory count ask `torch.cuda` for."""

    now = 0.0
    allocated = 100
    most = 100

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = -1.0

        def record(self) -> None:
            self.at = FakeCuda.now

        def elapsed_time(self, end: Any) -> float:
            return 1000 * (end.at - self.at)

    @staticmethod
    def _sleep(cycles: int) -> None:
        FakeCuda.now += 50.0

    @staticmethod
    def synchronize() -> None:
        FakeCuda.now += 7.0


def test_the_gpu_clock_leaves_out_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Event", "_sleep", "synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", getattr(FakeCuda, name))
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 100)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 130)

    def work() -> None:
        FakeCuda.now += 3.0

    assert clock_for("cuda")(work) == 3.0
    assert peak_extra(work, "cuda") == 30
    assert peak_extra(work, "cpu") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("graph", [pytest.param(False, marks=pytest.mark.slow), True])
def test_on_a_gpu(graph: bool, make_report: Callable[[], Report], listener: Any) -> None:
    settings = Settings("cuda", "bfloat16", repeats=3, seconds=0.1, graph=graph)
    shapes = [Shape(2, 4, 256, 64), Shape(1, 4, 256, 64, causal=True, key_heads=2)]
    outcomes = run_attention(shapes, all_rows(), settings, make_report(), listener)
    assert not failed(outcomes), [outcome.remark() for outcome in outcomes]
    kinds = {outcome.kind for outcome in outcomes if outcome.status == TIMED}
    assert kinds == {"plain", "dropout", "flex", "paper", "ours"}
    assert all(outcome.extra_mib for outcome in outcomes if outcome.status == TIMED)
