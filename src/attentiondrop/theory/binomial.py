"""The exact upper limit of a binomial proportion: the tightest bound on the risk of one fixed predictor."""

from __future__ import annotations

import math

import numpy as np

from ..errors import bad_argument
from ..validation import integer, number
from .rounding import SLACK


def binomial_upper(errors: int, n: int, delta: float = 0.05) -> float:
    """The largest p for which `errors` or fewer of `n` still have probability `delta` (Clopper and Pearson).

    With probability at least 1 - delta over n independent trials, the true chance of error is below this. It is rounded
    up, so that it is never below the exact limit. It is never below errors / n either, where the exact limit may be if
    delta is above one half.

    >>> round(binomial_upper(0, 100), 4)  # 1 - delta ** (1 / n), the "rule of three"
    0.0295
    """
    n, errors = integer("n", n, 1), integer("errors", errors, 0)
    delta = open_unit("delta", delta)
    if errors > n:
        raise bad_argument("errors", f"at most n = {n}", errors)
    if errors == n:
        return 1.0
    counts = np.arange(errors + 1)
    ways = np.array([math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in counts])
    # The terms of `logs` have rounding errors of this size, and the search must not end too early.
    least = math.log(delta) - (SLACK - 1.0) * (math.lgamma(n + 1) + n)
    low, high = errors / n, 1.0
    while low < (middle := 0.5 * (low + high)) < high:
        logs = ways + counts * math.log(middle) + (n - counts) * math.log1p(-middle)
        top = float(logs.max())
        tail = top + math.log(float(np.exp(logs - top).sum()))
        if tail >= least:
            low = middle
        else:
            high = middle
    return high


def open_unit(name: str, value: float) -> float:
    """A probability strictly between 0 and 1, or an error that names the argument."""
    checked = number(name, value, 0.0, 1.0)
    if checked in (0.0, 1.0):
        raise bad_argument(name, "a number between 0 and 1, both excluded", value)
    return checked
