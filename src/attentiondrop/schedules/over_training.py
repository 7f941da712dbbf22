"""Schedules over the progress of training."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import bad_argument
from ..validation import number
from .base import Schedule, between, check_list, evaluate, extremes_of


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at all times.

    >>> Constant(0.1).at(0.7)
    0.1
    """

    value: float

    name = "constant"

    def __post_init__(self) -> None:
        self._check("value")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value."""
        return evaluate(self.value, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """The value."""
        yield from extremes_of(self.value)


@dataclass(frozen=True)
class Linear(Schedule):
    """From `start` to `end` in a straight line.

    >>> Linear(0.0, 0.2).at(0.5)
    0.1
    """

    start: float
    end: float

    name = "linear"

    def __post_init__(self) -> None:
        self._check("start", "end")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the line."""
        return between(self.start, self.end, progress, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from extremes_of(self.start, self.end)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From `start` to `end` along half a cosine: slow, fast, slow.

    >>> round(Cosine(0.2, 0.0).at(0.25), 4)
    0.1707
    """

    start: float
    end: float

    name = "cosine"

    def __post_init__(self) -> None:
        self._check("start", "end")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the curve."""
        share = 0.5 - 0.5 * math.cos(math.pi * progress)
        return between(self.start, self.end, share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from extremes_of(self.start, self.end)


@dataclass(frozen=True)
class Warmup(Schedule):
    """From 0 up to `to` during the first `share` of training, then `to`, which may itself be a schedule.

    >>> Warmup(0.1, share=0.5).at(0.25), Warmup(0.1, share=0.5).at(0.9)
    (0.05, 0.1)
    """

    to: float
    share: float = 0.1

    name = "warmup"

    def __post_init__(self) -> None:
        self._check("to")
        object.__setattr__(self, "share", number("share", self.share, 0.0, 1.0))

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value on the ramp, or `to` after it."""
        reached = 1.0 if progress >= self.share else progress / self.share
        return between(0.0, self.to, reached, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """0 and the target."""
        yield from extremes_of(0.0, self.to)

    def corners(self) -> Iterator[float]:
        """The end of the ramp."""
        yield self.share
        yield from super().corners()


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Straight lines between `values[i]` at progress `at_progress[i]`; constant before the first and after the last.

    >>> Piecewise([0.0, 0.5], [0.2, 0.0]).at(0.25)
    0.1
    """

    at_progress: tuple[float, ...]
    values: tuple[float, ...]

    name = "piecewise"

    def __post_init__(self) -> None:
        _check_points(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the line between two neighbours."""
        places = self.at_progress
        after = min(bisect.bisect_left(places, progress), len(places) - 1)
        before = max(after - 1, 0) if progress < places[after] else after
        gap = places[after] - places[before]
        share = 0.0 if gap == 0 else (progress - places[before]) / gap
        return between(self.values[before], self.values[after], share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """All corners."""
        yield from extremes_of(*self.values)

    def corners(self) -> Iterator[float]:
        """The given places."""
        yield from self.at_progress
        yield from super().corners()


@dataclass(frozen=True)
class Steps(Schedule):
    """`values[i]` from the progress `at_progress[i]` on.

    >>> Steps([0.0, 0.5], [0.0, 0.2]).at(0.49), Steps([0.0, 0.5], [0.0, 0.2]).at(0.5)
    (0.0, 0.2)
    """

    at_progress: tuple[float, ...]
    values: tuple[float, ...]

    name = "steps"

    def __post_init__(self) -> None:
        _check_points(self)
        if self.at_progress[0] != 0.0:
            raise bad_argument("at_progress", "0 as the first", self.at_progress)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the last step that was reached."""
        reached = bisect.bisect_right(self.at_progress, progress) - 1
        return evaluate(self.values[reached], progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """All steps."""
        yield from extremes_of(*self.values)

    def corners(self) -> Iterator[float]:
        """The start of each step, and the last moment before it."""
        for place in self.at_progress:
            yield place
            yield math.nextafter(place, 0.0)
        yield from super().corners()


@dataclass(frozen=True)
class VShape(Schedule):
    """Down from `high` to `low` until the progress `turn`, then up again: the schedule of Scheduled DropHead.

    Its authors go down to 0 while the learning rate warms up, and then up to the rate that they began with.

    >>> VShape(0.2, turn=0.5).at(0.75)
    0.1
    """

    high: float
    low: float = 0.0
    turn: float = 0.1

    name = "v_shape"

    def __post_init__(self) -> None:
        self._check("high", "low")
        object.__setattr__(self, "turn", number("turn", self.turn, 0.0, 1.0))
        if not 0.0 < self.turn < 1.0:
            raise bad_argument("turn", "a number above 0 and below 1", self.turn)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On one of the two lines."""
        if progress < self.turn:
            return between(self.high, self.low, progress / self.turn, progress, layer, layers)
        return between(self.low, self.high, (progress - self.turn) / (1.0 - self.turn), progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from extremes_of(self.high, self.low)

    def corners(self) -> Iterator[float]:
        """The turn."""
        yield self.turn
        yield from super().corners()


def _check_points(schedule: Any) -> None:
    check_list(schedule)
    check_list(schedule, "at_progress")
    places = schedule.at_progress
    numbers = all(isinstance(place, float) and 0.0 <= place <= 1.0 for place in places)
    if not numbers or any(one >= other for one, other in pairwise(places)):
        raise bad_argument("at_progress", "rising numbers in [0, 1]", list(places))
    if len(places) != len(schedule.values):
        raise bad_argument("values", f"{len(places)} values, one for each progress", list(schedule.values))
