"""Time rows in turns within every repeat, so that a machine that becomes slower affects all rows alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .clock import Clock, Work, captured, peak_extra
from .tensors import Attend, Tensors

#: Every row is timed at least this often, even if it is slow.
LEAST = 5
#: A graph keeps all memory of its work. Work that needs more than this is timed without a graph: it takes so long that
#: launching does not matter.
LARGEST_GRAPH = 2 * 2**30


@dataclass(frozen=True)
class Timed:
    """A warmed-up row: its forward, its forward and backward, its memory, and about how long both take together."""

    forward: Work
    step: Work
    extra_bytes: int | None
    seconds: float
    #: Whether both are replays of CUDA graphs.
    graph: bool = False


@dataclass
class Samples:
    """Seconds of one row, one entry for every repeat that it took part in."""

    forward: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


def warmed(attend: Attend, tensors: Tensors, clock: Clock, graph: bool = False) -> Timed:
    """Run a row once, so that compilation and tuning are done. The forward alone runs without gradients."""
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
    graph = graph and (extra or 0) <= LARGEST_GRAPH
    if graph:
        first, second = captured(forward), captured(step)
        first(), second()
    return Timed(first, second, extra, clock(first) + clock(second), graph)


def take_turns(
    rows: Mapping[str, Timed], clock: Clock, repeats: int, seconds: float, tick: Callable[[float], None]
) -> dict[str, Samples]:
    """Time every row at most `repeats` times; a slow one only for about `seconds`, but at least `LEAST` times.

    Slow rows leave out the later repeats, so repeat i of a row is measured next to repeat i of every faster row.
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
