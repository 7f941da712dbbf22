"""Numbers by epoch: the mean over the seeds, and how far the seeds lie apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..analysis.intervals import Spread
from ..analysis.outcomes import Outcome
from ..runs.store import Epoch
from .chart import Point

Value = Callable[[Epoch], float | None]


def by_epoch(outcomes: Sequence[Outcome], value: Value, *, best: bool = False) -> list[Point]:
    """Mean and one standard deviation to both sides, over the finished runs; `best` takes each run's best so far.

    Runs that stopped early are left out altogether: a mean over fewer and fewer seeds would show their loss as a jump.
    """
    found: dict[int, list[float]] = {}
    for each in outcomes:
        if each.run is None or each.status != "finished":
            continue
        highest: float | None = None
        # A run that was resumed may have recorded an epoch twice: the later one counts.
        for epoch in {epoch.epoch: epoch for epoch in each.run.epochs}.values():
            number = value(epoch)
            if best:
                highest = max((x for x in (number, highest) if x is not None), default=None)
                number = highest
            if number is not None:
                found.setdefault(epoch.epoch, []).append(number)
    return [_point(epoch, Spread.of(found[epoch])) for epoch in sorted(found)]


def stretches(points: Sequence[Point]) -> list[list[Point]]:
    """Cut where an epoch is missing, so that a line does not cross what was not measured."""
    parts: list[list[Point]] = []
    for point in points:
        if parts and point.x - parts[-1][-1].x == 1:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def _point(epoch: int, spread: Spread) -> Point:
    if spread.std is None:
        return Point(epoch, spread.mean)
    return Point(epoch, spread.mean, spread.mean - spread.std, spread.mean + spread.std)
