"""Numbers by epoch: the mean over the seeds, and how far the seeds lie apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..analysis.intervals import Spread
from ..analysis.outcomes import Outcome
from ..train.epoch_log import Epoch
from .chart import Point

Value = Callable[[Epoch], float | None]
#: `max` or `min`.
Best = Callable[[Iterable[float]], float]


def by_epoch(outcomes: Sequence[Outcome], value: Value, *, best: Best | None = None) -> list[Point]:
    """Mean and one standard deviation to both sides, over the finished runs; `best` picks each run's
    best value so far.

    Runs that stopped early are left out altogether: a mean over fewer and fewer seeds would show their loss as a jump.
    """
    found: dict[int, list[float]] = {}
    for each in outcomes:
        if each.run is None or each.status != "finished":
            continue
        so_far: list[float] = []
        # A run that was resumed may have recorded an epoch twice: the later one counts.
        for epoch in {epoch.epoch: epoch for epoch in each.run.epochs}.values():
            number = value(epoch)
            if best is not None:
                if number is not None:
                    so_far = [best([*so_far, number])]
                number = so_far[0] if so_far else None
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
