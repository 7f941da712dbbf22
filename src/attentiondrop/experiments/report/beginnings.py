"""Curves that begin far from where they end, such as a loss that falls from 9 to 2: an axis for what comes later."""

from __future__ import annotations

from collections.abc import Sequence

from .chart import Point
from .scales import Scale

#: This share of the epochs of a curve is its beginning.
BEGINNING = 0.2
#: Curves with fewer points are shown whole: each of their points matters.
FEWEST = 10
#: An axis leaves the beginnings out if it would need them for more than this share of its length.
MOST = 2 / 3


def later(points: Sequence[Point]) -> list[Point]:
    """A curve without its beginning. A curve of a few points has none.

    >>> [point.x for point in later([Point(epoch, 0.0) for epoch in range(1, 21)])][:2]
    [5, 6]
    """
    if len(points) < FEWEST:
        return list(points)
    return [point for point in points if point.x > BEGINNING * points[-1].x]


def hides(every: Sequence[float], rest: Sequence[float]) -> bool:
    """Whether an axis for `every` number would leave little of its length to the `rest`, without the beginnings.

    >>> hides([9.0, 3.0, 2.0], [3.0, 2.0]), hides([4.0, 3.0, 2.0], [3.0, 2.0])
    (True, False)
    """
    return 0 < max(rest) - min(rest) < (1 - MOST) * (max(every) - min(every))


def within(points: Sequence[Point], axis: Scale) -> tuple[list[Point], bool]:
    """A line from where it enters the axis, and whether it began outside. Empty if it never enters.

    >>> points, outside = within([Point(1, 9.0), Point(2, 4.0), Point(3, 2.0)], Scale(1.0, 3.0))
    >>> [(point.x, point.y) for point in points], outside
    ([(2.5, 3.0), (3, 2.0)], True)
    """
    first = next((index for index, point in enumerate(points) if axis.low <= point.y <= axis.high), None)
    if first is None:
        return [], True
    if first == 0:
        return list(points), False
    before, entering = points[first - 1], points[first]
    edge = axis.high if before.y > axis.high else axis.low
    share = (edge - before.y) / (entering.y - before.y)
    return [Point(before.x + share * (entering.x - before.x), edge), *points[first:]], True
