"""Quantiles of times, and ratios of times that were taken in the same repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Quantiles(NamedTuple):
    """The 20 %, 50 % and 80 % quantiles."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """The quantiles of `values`, interpolated as NumPy does by default.

        >>> Quantiles.of([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
        Quantiles(low=2.0, middle=3.5, high=5.0)
        """
        low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), (0.2, 0.5, 0.8)).tolist()
        return cls(low, middle, high)


def ratios(values: Sequence[float], base: Sequence[float]) -> Quantiles:
    """Quantiles of the ratio within each repeat, over the repeats that both took part in.

    >>> ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0, 4.0]).middle
    2.0
    """
    return Quantiles.of([value / other for value, other in zip(values, base, strict=False)])
