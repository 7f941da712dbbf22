"""The probability of improvement: how often a run of a method is better than a run of the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .intervals import CONFIDENCE, Interval

_RESAMPLES = 2000


@dataclass(frozen=True)
class Improvement:
    """Over all pairs of a run of the method and one of the baseline; and within seeds."""

    #: The share of pairs in which the method is better; equal ones count half.
    probability: float
    #: The percentile interval of resampled seeds; None with one seed.
    interval: Interval | None
    #: In how many of the seeds that both finished the method is better.
    wins: int
    seeds: int

    def text(self) -> str:
        """For a person: `0.90 [0.70, 1.00]`."""
        span = "" if self.interval is None else f" [{self.interval.low:.2f}, {self.interval.high:.2f}]"
        return f"{self.probability:.2f}{span}"


def improvement(values: Mapping[int, float], baseline: Mapping[int, float], seed: int = 0) -> Improvement | None:
    """How often `values` are higher than `baseline`, both by seed; None if they share no seed.

    For a metric that is better when it is lower, give both with the sign changed.

    >>> improvement({0: 0.9, 1: 0.95}, {0: 0.91, 1: 0.91}).text()
    '0.50 [0.00, 1.00]'
    """
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        return None
    ours, theirs = (np.array([numbers[key] for key in shared]) for numbers in (values, baseline))
    better = _better(ours[:, None], theirs[None, :])
    interval = None
    if len(shared) > 1:
        # Both runs of a seed are drawn together, since they share their weights and their data.
        drawn = np.random.default_rng(seed).integers(len(shared), size=(_RESAMPLES, len(shared)))
        means = [better[np.ix_(chosen, chosen)].mean() for chosen in drawn]
        tail = 50 * (1 - CONFIDENCE)
        interval = Interval(*(float(end) for end in np.percentile(means, [tail, 100 - tail])))
    return Improvement(float(better.mean()), interval, int((ours > theirs).sum()), len(shared))


def _better(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return np.asarray((ours > theirs) + 0.5 * (ours == theirs), dtype=np.float64)
