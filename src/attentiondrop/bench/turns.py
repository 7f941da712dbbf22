"""Rows take turns within every repeat, so that a machine that slows down slows all of them down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .clock import Clock, Work, captured, peak_extra
from .tensors import Attend, Tensors

#: However slow a row is, it is timed this often.
LEAST = 5
#: A graph keeps all the memory that its work needs, so larger work is timed as it is; it takes long enough for that.
LARGEST_GRAPH = 2 * 2**30


@dataclass(frozen=True)
class Timed:
    """A row that is warm: its forward, its forward and backward, its memory, and about how long both take together."""

    forward: Work
    step: Work
    extra_bytes: int | None
    seconds: float


@dataclass
class Samples:
    """Seconds of one row, one of each for every repeat that it took part in."""

    forward: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


def warmed(attend: Attend, tensors: Tensors, clock: Clock, graph: bool = False) -> Timed:
    """Run a row until compilation and tuning are behind it. The forward alone runs without gradients."""
    device = tensors.q.device.type

    def forward() -> None:
        with torch.no_grad():
            attend(*tensors.inputs)

    def step() -> None:
        torch.autograd.grad(attend(*tensors.inputs), tensors.inputs, tensors.grad)

    first: Work = forward
    second: Work = step
    first(), second()
    extra = peak_extra(second, device)
    if graph and (extra or 0) <= LARGEST_GRAPH:
        first, second = captured(forward), captured(step)
        first(), second()
    return Timed(first, second, extra, clock(first) + clock(second))


def take_turns(
    rows: Mapping[str, Timed], clock: Clock, repeats: int, seconds: float, tick: Callable[[float], None]
) -> dict[str, Samples]:
    """Time every row at most `repeats` times, and a slow one only about `seconds` long, but `LEAST` times.

    Slow rows drop out of the later repeats, so repeat i of any row was taken beside repeat i of every faster one.
    """
    counts = {name: min(repeats, max(LEAST, int(seconds / row.seconds))) for name, row in rows.items()}
    samples = {name: Samples() for name in rows}
    longest = max(counts.values(), default=0)
    for repeat in range(longest):
        for name, row in rows.items():
            if repeat < counts[name]:
                samples[name].forward.append(clock(row.forward))
                samples[name].step.append(clock(row.step))
        tick((repeat + 1) / longest)
    return samples
