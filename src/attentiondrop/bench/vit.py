"""A training step of a vision transformer: forward under autocast, cross entropy, backward, AdamW.

All rows use one model: what a row changes about its attention is undone before the next row. Rows are timed one after
the other, since each needs its own compilation. In every mode the plain row is timed first and last. So the table shows
how much the speed of the machine changed, and ratios are to the mean of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError, bad_argument, did_you_mean
from .attention import Listener, Settings
from .check import Trial, Verdict, affordable
from .clock import clock_for
from .quantiles import Quantiles
from .records import FAILED, SKIPPED, TIMED, VitOutcome
from .report import Report
from .rows import OURS, PLAIN, CannotRunError, one_line
from .shapes import Shape
from .tensors import make_tensors
from .turns import LEAST
from .vit_rows import VitRow

#: Not compiled, each block compiled, the whole model compiled. Blocks are equal, so they are compiled only once.
MODES = ("eager", "blocks", "compiled")

#: If the time of the plain row changes by more than this share from first to last, ratios cannot be trusted.
STEADY = 0.03


@dataclass
class Bench:
    """The model, its optimiser, and data that stays on the device."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    images: Tensor
    labels: Tensor
    dtype: torch.dtype  # of the autocast, float32 for none

    @classmethod
    def of(cls, name: str, batch: int, settings: Settings) -> Bench:
        """A model with 1000 classes, in training mode, and random images."""
        if not timm.is_model(name):
            error = bad_argument("model", "the name of a timm model, such as vit_base_patch16_224", name)
            raise ArgumentError(f"{error}{did_you_mean(name, timm.list_models())}")
        device = settings.device
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=1000).to(device).train()
        images = torch.randn(batch, *model.default_cfg["input_size"], device=device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        labels = torch.randint(1000, (batch,), device=device)
        return cls(model, optimiser, images, labels, settings.torch_dtype)

    def step(self, forward: Callable[[Tensor], Tensor]) -> Tensor:
        """One training step; returns the loss."""
        with torch.autocast(self.images.device.type, self.dtype, enabled=self.dtype != torch.float32):
            loss = F.cross_entropy(forward(self.images), self.labels)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def attention_shape(self) -> Shape:
        """The shape of the model's attention calls."""
        seen = _Seen()
        with seen, torch.no_grad():
            self.model(self.images[:1])
        if not seen.shapes:
            raise bad_argument("model", "a model that calls scaled_dot_product_attention", type(self.model).__name__)
        _, heads, length, size = seen.shapes[0]
        return Shape(len(self.images), heads, length, size)


class _Seen(TorchFunctionMode):
    """Records the shapes of the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.shapes.append(args[0].shape)
        return func(*args, **(kwargs or {}))


def run_vit(
    name: str,
    batch: int,
    rows: Sequence[VitRow],
    modes: Sequence[str],
    settings: Settings,
    report: Report,
    listener: Listener,
) -> list[VitOutcome]:
    """Time every row in every mode; the report gets the results after each mode."""
    bench = Bench.of(name, batch, settings)
    shape = bench.attention_shape()
    plain = [row for row in rows if row.kind == PLAIN]
    listener.plan(len(modes) * (len(rows) + len(plain)))
    outcomes: list[VitOutcome] = []
    for index, mode in enumerate(modes):
        found: list[VitOutcome] = []
        for done, row in enumerate([*rows, *plain]):
            listener.progress(f"{mode}: {row.name}", index * (len(rows) + len(plain)) + done)
            about = {"row": row.name, "kind": row.kind, "model": name, "batch": batch, "mode": mode}
            found.append(run_row(bench, row, mode, shape, settings, about | {"dtype": settings.dtype}))
            listener.say(f"{mode}: {_said(found[-1])}")
        found = compared(found, again=len(plain))
        outcomes += found
        report.add(f"{name}, batch {batch}, {settings.dtype}, {mode}", found)
    listener.progress("done", len(modes) * (len(rows) + len(plain)))
    return outcomes


def run_row(
    bench: Bench, row: VitRow, mode: str, shape: Shape, settings: Settings, about: dict[str, Any]
) -> VitOutcome:
    """Check the attention alone, then the loss, then time the step."""
    torch.compiler.reset()
    verdict: Verdict | None = None
    try:
        verdict, path = _check(row, shape, settings)
        about |= {"check": verdict.text, "error": verdict.error, "error_limit": verdict.limit, "path": path}
        if not verdict.passed:
            return VitOutcome(**about, status=FAILED)
        with row.change(bench.model), forward_of(bench.model, mode) as forward:
            losses = [float(bench.step(forward)) for _ in range(2)]
            if not all(map(math.isfinite, losses)):
                return VitOutcome(**about, status=FAILED, note=f"the loss is {losses[-1]}")
            return VitOutcome(**about, status=TIMED, **_time(bench, forward, settings))
    except torch.OutOfMemoryError:
        return VitOutcome(**about, status=SKIPPED, note="out of memory")
    except CannotRunError as error:
        return VitOutcome(**about, status=SKIPPED, note=str(error))
    except Exception as error:
        status = FAILED if row.kind == OURS else SKIPPED
        return VitOutcome(**about, status=status, note=f"{type(error).__name__}: {one_line(str(error))}")


@contextmanager
def forward_of(model: nn.Module, mode: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """The model as a function, compiled as `mode` says; the model is restored afterwards."""
    if mode == "compiled":
        yield torch.compile(model, dynamic=False)
        return
    if mode == "eager":
        yield model
        return
    blocks: nn.Module = model.blocks  # type: ignore[assignment]
    try:
        parts: list[Any] = [torch.compile(block, dynamic=False) for block in blocks.children()]
        model.blocks = nn.Sequential(*parts)
        yield model
    finally:
        model.blocks = blocks


def compared(found: Sequence[VitOutcome], again: int) -> list[VitOutcome]:
    """Add ratios to the mean of the plain rows. The last `again` outcomes are the repeated plain rows: mark them."""
    steps = [outcome.step_ms for outcome in found if outcome.kind == PLAIN and outcome.step_ms is not None]
    peaks = [outcome.peak_gib for outcome in found if outcome.kind == PLAIN and outcome.peak_gib is not None]
    outcomes = list(found)
    for index in range(len(found) - again, len(found)):
        last = found[index]
        first = next(outcome for outcome in found if outcome.row == last.row)
        note = last.note
        if last.step_ms and first.step_ms:
            drift = last.step_ms / first.step_ms - 1
            note = f"step time {100 * drift:+.1f} % since the first"
            note += ", too much to trust the ratios" * (abs(drift) > STEADY)
        outcomes[index] = replace(last, row=f"{last.row}, again", note=note)
    step = sum(steps) / len(steps) if steps else None
    peak = sum(peaks) / len(peaks) if peaks else None
    return [
        replace(
            outcome,
            ratio=step / outcome.step_ms if step and outcome.step_ms else None,
            memory_ratio=outcome.peak_gib / peak if peak and outcome.peak_gib else None,
        )
        for outcome in outcomes
    ]


def _check(row: VitRow, shape: Shape, settings: Settings) -> tuple[Verdict, str]:
    """Check the attention of the row, at the shape of the model's calls and in the dtype of autocast."""
    part = replace(shape, batch=min(shape.batch, 32))
    tensors = make_tensors(part, settings.device, settings.torch_dtype)
    attend = row.attention.build(part, tensors)
    trial = Trial(attend, part, tensors, affordable(part, settings.device), row.attention.build)
    return row.attention.check(trial), row.attention.path(part, tensors)


def _time(bench: Bench, forward: Callable[[Tensor], Tensor], settings: Settings) -> dict[str, Any]:
    cuda, clock = settings.device == "cuda", clock_for(settings.device)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    once = clock(lambda: bench.step(forward))
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    repeats = min(settings.repeats, max(LEAST, int(settings.seconds / once)))
    step = Quantiles.of([1000 * clock(lambda: bench.step(forward)) for _ in range(repeats)])
    return {
        "repeats": repeats,
        "step_ms_20": step.low,
        "step_ms": step.middle,
        "step_ms_80": step.high,
        "images_per_second": 1000 * len(bench.images) / step.middle,
        "peak_gib": peak,
    }


def _said(outcome: VitOutcome) -> str:
    if outcome.images_per_second is None:
        return outcome.remark()
    return f"{outcome.row}: {outcome.images_per_second:.1f} img/s"
