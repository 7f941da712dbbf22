"""The probability of improvement: how often a run of a method is better than a run of the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .intervals import Interval

#: The quantile of the normal distribution for an interval of 95 %.
_QUANTILE = 1.959963984540054


@dataclass(frozen=True)
class Improvement:
    """Over all pairs of a run of the method and one of the baseline."""

    #: The share of pairs in which the method is better; equal ones count half.
    probability: float
    #: Wilson's 95 % interval for a share of so many seeds. A bootstrap of few seeds would find no doubt where all won.
    interval: Interval
    #: How many seeds both finished.
    seeds: int

    def text(self) -> str:
        """For a person: `0.90 [0.70, 0.97]`."""
        return f"{self.probability:.2f} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


def improvement(values: Mapping[int, float], baseline: Mapping[int, float]) -> Improvement | None:
    """How often `values` are higher than `baseline`, both by seed; None if they share no seed.

    For a metric that is better when it is lower, give both with the sign changed.

    >>> improvement({0: 0.9, 1: 0.95}, {0: 0.91, 1: 0.91}).text()
    '0.50 [0.09, 0.91]'
    """
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        return None
    pairs = [(values[own], baseline[other]) for own in shared for other in shared]
    probability = sum((ours > theirs) + 0.5 * (ours == theirs) for ours, theirs in pairs) / len(pairs)
    return Improvement(probability, _wilson(probability, len(shared)), len(shared))


def _wilson(share: float, count: int) -> Interval:
    spread = _QUANTILE**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = _QUANTILE * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))
