"""Numbers by epoch: mean and standard deviation over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..analysis.intervals import Spread
from ..analysis.outcomes import Outcome
from ..train.epoch_log import Epoch
from .chart import Point

Value = Callable[[Epoch], float | None]
#: `max` or `min`, whichever is better.
Best = Callable[[Iterable[float]], float]


def by_epoch(outcomes: Sequence[Outcome], value: Value, *, best: Best | None = None) -> list[Point]:
    """Epoch by epoch, the mean over finished runs and one standard deviation to both sides.

    With `best`, each run counts with its best value so far. Runs that stopped early are left out for all epochs:
    otherwise the mean would jump where they stop.
    """
    found: dict[int, list[float]] = {}
    for each in outcomes:
        if each.run is None or each.status != "finished":
            continue
        so_far: list[float] = []
        # A resumed run may have recorded an epoch twice. The later record counts.
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
    """The points in parts, cut where an epoch is missing, so that no line is drawn over epochs without a value."""
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
