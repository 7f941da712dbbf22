"""Axes of plots: the positions of numbers, and the ticks with their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .markup import MINUS


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def place(self, value: float) -> float:
        """0 at `low`, 1 at `high`. On a logarithmic axis, values of zero or less are at minus infinity."""
        if self.log and value <= 0:
            return -math.inf
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Round values within the axis, with their labels."""
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _step(self.high - self.low, most)
        if self.whole:
            step = max(1.0, step if step == int(step) else math.ceil(step))
        digits = max(0, -math.floor(math.log10(step) + 1e-9) + (1 if _is_quarter(step) else 0))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, f"{index * step:.{digits}f}".replace("-", MINUS)) for index in range(first, last + 1)]


def fit(values: Iterable[float], *, room: float = 0.06, ceiling: float | None = None, log: bool = False) -> Scale:
    """A scale that holds the values with some room. With `log` it is logarithmic if they span more than a factor of 30.

    `ceiling` is the largest possible value, such as 100 %.
    """
    found = list(values)
    low, high = min(found), max(found)
    if log and low > 0 and high / low > 30:
        factor = (high / low) ** room
        return Scale(low / factor, high * factor, log=True)
    if low == high:
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    margin = room * (high - low)
    top = high + margin
    bottom = low - margin if low < 0 or low - margin > 0 else 0.0
    return Scale(bottom, top if ceiling is None else max(max(found), min(top, ceiling)))


def without_far_off(groups: Sequence[Sequence[float]]) -> list[float]:
    """The numbers of all groups, such as methods, but of those few that are so far off that the rest would be a speck.

    A group is left out if the others then need less than a third of the axis. At most a fifth of the groups is, but one
    may be in any case if there are three or more.

    >>> without_far_off([[1.0], [1.5], [2.0], [90.0]])
    [1.0, 1.5, 2.0]
    """
    kept = [list(each) for each in groups if each]
    for _ in range(max(1, len(kept) // 5) if len(kept) > 2 else 0):
        every = [number for each in kept for number in each]
        spans = [_span(kept[:index] + kept[index + 1 :]) for index in range(len(kept))]
        best = min(range(len(kept)), key=spans.__getitem__)
        if not spans[best] < (max(every) - min(every)) / 3 or spans[best] == 0:
            break
        del kept[best]
    return [number for each in kept for number in each]


def _span(groups: Sequence[Sequence[float]]) -> float:
    every = [number for each in groups for number in each]
    return max(every) - min(every)


def _step(span: float, most: int) -> float:
    rough = span / most
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _is_quarter(step: float) -> bool:
    return round(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 3) == 2.5


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    stride = max(1, len(values) // 8)
    return [(value, f"{value:g}") for value in values[::stride] if low <= value <= high]
