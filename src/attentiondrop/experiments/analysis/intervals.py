"""Means, deviations and paired differences over seeds, with 95 % intervals and notes on how to read them.

An interval is for the mean paired difference. Two runs with the same seed start from the same weights and see the same
batches, so the difference within a seed says more than the two means. `kind="t"` is Student's interval: it assumes
roughly normal differences, and is valid but wide with few seeds. `kind="bootstrap"` is the percentile interval of
resampled seeds: it does not assume normal differences, but is too narrow with few seeds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...validation import number, one_of

#: With fewer seeds than this, a difference between methods may well be noise.
ENOUGH_SEEDS = 5
CONFIDENCE = 0.95
KINDS = ("t", "bootstrap")
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over the seeds; a single seed has no deviation.

    >>> Spread.of([0.91, 0.93]).times(100).text(1)
    '92.0 ± 1.4'
    """

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one number per seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def times(self, factor: float) -> Spread:
        """In another unit, such as per cent."""
        return Spread(self.mean * factor, None if self.std is None else self.std * factor, self.count)

    def text(self, digits: int, sign: str = "±") -> str:
        """For a person: `96.1 ± 0.3`."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.std is None else f"{mean} {sign} {self.std:.{digits}f}"


@dataclass(frozen=True)
class Interval:
    """Where the mean difference lies, with 95 % confidence."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval is on one side of zero."""
        return self.low > 0 or self.high < 0

    def within(self, margin: float) -> bool:
        """Whether the whole interval is closer to zero than `margin`."""
        return -margin < self.low and self.high < margin

    def text(self, digits: int) -> str:
        """For a person: `[-0.1, +1.7]`."""
        return f"[{signed(self.low, digits)}, {signed(self.high, digits)}]"


@dataclass(frozen=True)
class Difference:
    """A method minus the baseline, over the seeds that both finished.

    `interval` and `p_value` (of the paired t test) are None with one seed, and when all differences are equal. Then
    the data does not tell how much another seed would differ.
    """

    mean: float
    std: float | None
    interval: Interval | None
    p_value: float | None
    #: The seeds that both finished, and the seeds that only one of them finished.
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    #: The p value after Holm's correction for all comparisons of its family, see `corrected`.
    holm_p: float | None = None
    #: The t interval after that correction. It excludes zero exactly if `holm_p` is below 5 %.
    holm_interval: Interval | None = None
    #: The t interval after Bonferroni's correction. Those of a family all hold together in 95 % of all studies, which
    #: Holm's do not: the one with the largest p value is not widened. So only this one can show that two are equal.
    joint_interval: Interval | None = None

    @property
    def marked(self) -> bool:
        """Whether a table may mark it: it remains after Holm's correction, and its interval excludes zero."""
        corrected = self.holm_p is not None and self.holm_p < 1 - CONFIDENCE
        return corrected and self.interval is not None and self.interval.excludes_zero

    def times(self, factor: float) -> Difference:
        """In another unit, such as percentage points."""
        return dataclasses.replace(
            self,
            mean=self.mean * factor,
            std=None if self.std is None else self.std * abs(factor),
            interval=_scaled(self.interval, factor),
            holm_interval=_scaled(self.holm_interval, factor),
            joint_interval=_scaled(self.joint_interval, factor),
        )

    def text(self, digits: int) -> str:
        """For a person: `+0.8 [-0.1, +1.7]`."""
        mean = signed(self.mean, digits)
        return mean if self.interval is None else f"{mean} {self.interval.text(digits)}"


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], kind: str = "t", seed: int = 0
) -> Difference | None:
    """`values` minus `baseline`, both by seed; None if they share no seed. `seed` is the seed of the bootstrap.

    >>> paired_difference({0: 0.92, 1: 0.95, 2: 0.93}, {0: 0.90, 1: 0.91, 2: 0.92, 3: 0.9}).times(100).text(1)
    '+2.3 [-1.5, +6.1]'
    """
    one_of("kind", kind, KINDS)
    shared = tuple(sorted(values.keys() & baseline.keys()))
    if not shared:
        return None
    left_out = tuple(sorted(values.keys() ^ baseline.keys()))
    differences = [values[key] - baseline[key] for key in shared]
    spread = Spread.of(differences)
    interval, p_value = None, None
    scale = max(max(abs(values[key]), abs(baseline[key])) for key in shared)
    # Differences that are equal up to rounding count as equal: an interval as narrow as rounding errors would mislead.
    if spread.std is not None and spread.std > 1e-12 * scale:
        error = spread.std / math.sqrt(len(shared))
        p_value = _p_value(spread.mean / error, len(shared) - 1)
        interval = _bootstrap(differences, seed) if kind == "bootstrap" else _student(spread.mean, error, len(shared))
    return Difference(spread.mean, spread.std, interval, p_value, shared, left_out)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P values after Holm's adjustment. Rejecting those below 5 % gives any false alarm with probability at most 5 %.

    None stands for a comparison without a p value and is not counted.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    return [None if p is None else min(1.0, p) for p in _uncapped(p_values)]


def _uncapped(p_values: Sequence[float | None]) -> list[float | None]:
    """As `holm`, but values above 1 stay."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, number("p_values", p, 0.0, 1.0) * (len(order) - rank))
        adjusted[index] = largest
    return adjusted


def corrected(family: Sequence[Difference | None]) -> list[Difference | None]:
    """The differences of one family, which readers look at together, each with what Holm's correction makes of it."""
    adjusted = _uncapped([None if each is None else each.p_value for each in family])
    count = sum(p is not None for p in adjusted)
    return [
        None if each is None else each if p is None else _after(each, p, count)
        for each, p in zip(family, adjusted, strict=True)
    ]


def _after(each: Difference, adjusted: float, family: int) -> Difference:
    """A difference with its adjusted p value. Its interval is as much wider as the p value is larger: both agree."""
    p, after, joint = each.p_value, None, None
    if p is not None and each.std is not None and each.interval is not None:
        error, count = each.std / math.sqrt(len(each.seeds)), len(each.seeds)
        shares = p / adjusted if adjusted > 0 else 1 / family, 1 / family
        after, joint = (_student(each.mean, error, count, 1 - (1 - CONFIDENCE) * share) for share in shares)
    return dataclasses.replace(each, holm_p=min(1.0, adjusted), holm_interval=after, joint_interval=joint)


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else Interval(*sorted((interval.low * factor, interval.high * factor)))


def few_seeds_note(seeds: int) -> str | None:
    """A warning for a table with too few seeds; None if there are enough."""
    if seeds >= ENOUGH_SEEDS or seeds < 1:
        return None
    if seeds == 1:
        return (
            "One seed is too few to tell the methods apart, and gives no interval: "
            f"use {ENOUGH_SEEDS} seeds or more before you draw conclusions."
        )
    count = {2: "Two", 3: "Three", 4: "Four"}[seeds]
    return (
        f"{count} seeds are too few to tell the methods apart unless they differ greatly: "
        f"use {ENOUGH_SEEDS} or more before you draw conclusions."
    )


def by_chance(kind: str) -> str:
    """How many 95 % intervals exclude zero where nothing differs. Those of the bootstrap are too narrow for 1 in 20."""
    return "1 in 20" if kind == "t" else "1 in 6 with 5 seeds or 1 in 10 with 10"


def many_comparisons_note(comparisons: int, excluding: int, remaining: int, kind: str = "t") -> str | None:
    """A sentence: how many comparisons were made, how many exclude zero, how many of those remain after correction.

    >>> many_comparisons_note(7, excluding=2, remaining=0).split(". ")[1]
    "Here 2 do, and none remains after Holm's correction for that; the adjusted p values are in results.csv."
    """
    if comparisons < 2:
        return None
    here = "none does" if excluding == 0 else f"{excluding} do{'es' * (excluding == 1)}"
    kept = "none remains" if remaining == 0 else f"{remaining} remain{'s' * (remaining == 1)}"
    told = f"Here {here}, and {kept}"
    return (
        f"{comparisons} comparisons were made: of 95 % intervals, {by_chance(kind)} excludes zero by chance alone. "
        f"{told} after Holm's correction for that; the adjusted p values are in results.csv."
    )


def signed(value: float, digits: int) -> str:
    """A number with its sign, but without one if it rounds to zero: `+0.8`, `-0.2`, `0.0`."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def _p_value(t: float, freedom: int) -> float:
    """The two-sided p value of Student's t."""
    from scipy import stats  # slow to import, and only differences need it

    return float(2 * stats.t.sf(abs(t), freedom))


def _student(mean: float, error: float, count: int, confidence: float = CONFIDENCE) -> Interval:
    low, high = _standard_errors(confidence, count - 1)
    return Interval(mean + low * error, mean + high * error)


@lru_cache(maxsize=1024)
def _standard_errors(confidence: float, freedom: int) -> tuple[float, float]:
    """Where Student's interval ends, in standard errors. A report asks for few of them, thousands of times."""
    from scipy import stats

    low, high = stats.t.interval(confidence, freedom)
    return float(low), float(high)


def _bootstrap(differences: Sequence[float], seed: int) -> Interval:
    from scipy import stats

    found = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))
