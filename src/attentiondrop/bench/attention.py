"""Time attention alone: for each shape, build every row, check it, and time the rows that passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ..errors import bad_argument
from .check import Trial, Verdict, affordable
from .clock import clock_for
from .quantiles import Quantiles, ratios
from .records import FAILED, SKIPPED, TIMED, AttentionOutcome
from .report import Report
from .rows import DROPOUT, FLEX, OURS, PLAIN, CannotRunError, Row, one_line
from .shapes import Shape
from .tensors import Attend, Tensors, make_tensors
from .turns import LARGEST_GRAPH, Samples, Timed, take_turns, warmed


class Listener(Protocol):
    """Receives the progress of a run."""

    def say(self, line: str) -> None:
        """Show one line to the user."""

    def plan(self, total: int) -> None:
        """Set the number of pieces of work."""

    def progress(self, label: str, done: float) -> None:
        """Set how many pieces are done; `label` names the present one."""


@dataclass(frozen=True)
class Settings:
    """How to time. `repeats` is the largest number for each row, `seconds` is about how long a row may take."""

    device: str
    dtype: str
    repeats: int = 20
    seconds: float = 1.5
    compile: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise bad_argument("device", "'cpu', since torch sees no CUDA device on this machine", self.device)
        if self.graph and self.device != "cuda":
            raise bad_argument("graph", "device 'cuda'", self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


class Prepared(NamedTuple):
    """A row at a shape: its outcome so far, and what to time if it passed its check."""

    outcome: dict[str, Any]
    timed: Timed | None


def run_attention(
    shapes: Sequence[Shape], rows: Sequence[Row], settings: Settings, report: Report, listener: Listener
) -> list[AttentionOutcome]:
    """Time every row at every shape; the report gets the results after each shape."""
    listener.plan(2 * len(shapes) * len(rows))
    outcomes: list[AttentionOutcome] = []
    for index, shape in enumerate(shapes):
        before = 2 * index * len(rows)
        found = _run_shape(shape, rows, settings, _Part(listener, str(shape), before, len(rows)))
        outcomes += found
        report.add(str(shape), found)
        timed = sum(outcome.status == TIMED for outcome in found)
        listener.say(f"{shape}: {timed} of {len(rows)} rows timed")
        for outcome in found:
            if outcome.status == FAILED:
                listener.say(outcome.remark())
    listener.progress("done", 2 * len(shapes) * len(rows))
    return outcomes


class _Part(NamedTuple):
    """The part of the progress bar for one shape: half for preparing the rows, half for timing them."""

    listener: Listener
    label: str
    before: int
    rows: int

    def preparing(self, row: str, done: int) -> None:
        self.listener.progress(f"{self.label}: {row}", self.before + done)

    def timing(self, share: float) -> None:
        self.listener.progress(f"{self.label}: timing", self.before + self.rows * (1 + share))


def _run_shape(shape: Shape, rows: Sequence[Row], settings: Settings, part: _Part) -> list[AttentionOutcome]:
    # Forget compiled functions of other shapes: torch would search through them in every call.
    torch.compiler.reset()
    tensors = make_tensors(shape, settings.device, settings.torch_dtype)
    prepared: dict[str, Prepared] = {}
    for done, row in enumerate(rows):
        part.preparing(row.name, done)
        prepared[row.name] = prepare(row, shape, tensors, settings)
        if settings.device == "cuda":
            torch.cuda.empty_cache()
    timed = {name: entry.timed for name, entry in prepared.items() if entry.timed is not None}
    clock = clock_for(settings.device)
    samples = take_turns(timed, clock, settings.repeats, settings.seconds, part.timing)
    kinds = {row.name: row.kind for row in rows}
    bases = {kind: fastest(kind, kinds, samples) for kind in (PLAIN, DROPOUT)}
    common: dict[str, Any] = {
        "batch": shape.batch,
        "heads": shape.heads,
        "key_heads": shape.key_heads,
        "length": shape.length,
        "size": shape.size,
        "causal": shape.causal,
        "dtype": settings.dtype,
        "compiled": settings.compile,
    }
    return [
        AttentionOutcome(**entry.outcome, **common, **numbers(name, entry.timed, samples, bases))
        for name, entry in prepared.items()
    ]


def prepare(row: Row, shape: Shape, tensors: Tensors, settings: Settings) -> Prepared:
    """Build, check and warm up a row. An error becomes the outcome of the row and does not stop the run."""

    def build(shape: Shape, tensors: Tensors) -> Attend:
        attend = row.build(shape, tensors)
        return compiled(attend) if settings.compile and row.kind != FLEX else attend

    about: dict[str, Any] = {"row": row.name, "kind": row.kind}
    verdict: Verdict | None = None
    try:
        attend = build(shape, tensors)
        verdict = row.check(Trial(attend, shape, tensors, affordable(shape, settings.device), build))
        about |= {"check": verdict.text, "error": verdict.error, "error_limit": verdict.limit}
        if not verdict.passed:
            return Prepared(about | {"status": FAILED}, None)
        about["path"] = row.path(shape, tensors)
        timed = warmed(attend, tensors, clock_for(settings.device), settings.graph)
    except torch.OutOfMemoryError:
        return Prepared(about | {"status": SKIPPED, "note": "out of memory"}, None)
    except CannotRunError as error:
        return Prepared(about | {"status": SKIPPED, "note": str(error)}, None)
    except Exception as error:
        # torch may refuse to run a row: it is skipped. A row of this library must run: it failed.
        wrong = row.kind == OURS and verdict is None
        note = f"{type(error).__name__}: {one_line(str(error))}"
        return Prepared(about | {"status": FAILED if wrong else SKIPPED, "note": note}, None)
    if settings.graph and not timed.graph:
        about["note"] = f"timed without a CUDA graph, which would keep more than {LARGEST_GRAPH >> 30} GiB"
    return Prepared(about | {"status": TIMED}, timed)


def compiled(attend: Attend) -> Attend:
    """The row under `torch.compile`. It gets its own code object, since the compiler stores results by code object."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v)

    run.__code__ = run.__code__.replace()
    return torch.compile(run, dynamic=False)


def fastest(kind: str, kinds: Mapping[str, str], samples: Mapping[str, Samples]) -> str:
    """The row of a kind with the smallest median of forward and backward; "" if there is none."""
    medians = {name: Quantiles.of(taken.step).middle for name, taken in samples.items() if kinds[name] == kind}
    return min(medians, key=medians.__getitem__, default="")


def numbers(name: str, timed: Timed | None, samples: Mapping[str, Samples], bases: Mapping[str, str]) -> dict[str, Any]:
    """The columns with numbers of one row; empty for a row that was not timed."""
    if timed is None:
        return {}
    taken = samples[name]
    step = Quantiles.of(taken.step)
    found: dict[str, Any] = {
        "graph": timed.graph,
        "repeats": len(taken.step),
        "forward_ms": 1000 * Quantiles.of(taken.forward).middle,
        "step_ms_20": 1000 * step.low,
        "step_ms": 1000 * step.middle,
        "step_ms_80": 1000 * step.high,
        "extra_mib": None if timed.extra_bytes is None else timed.extra_bytes / 2**20,
    }
    for kind, base in bases.items():
        if base:
            to = ratios(taken.step, samples[base].step)
            found |= {
                f"{kind}_base": base,
                f"{kind}_ratio_20": to.low,
                f"{kind}_ratio": to.middle,
                f"{kind}_ratio_80": to.high,
            }
    return found
