"""KL between two Bernoulli distributions, and its inverse, which all bounds here use. Plain arithmetic, no arrays.

Near q = p the textbook formula subtracts numbers that are nearly equal, and loses digits. Here it is
`q f((p - q) / q) + (1 - q) f(-(p - q) / (1 - q))` with `f(x) = x - log(1 + x)`, in which the linear terms have been
cancelled. This keeps its digits, and so does the inverse, for budgets far below 1e-10. The inverse is rounded up.
"""

from __future__ import annotations

import math

from ..validation import number
from .rounding import SLACK, next_above


def binary_kl(q: float, p: float) -> float:
    """KL(Bernoulli(q) || Bernoulli(p)) in nats; infinite if p is 0 or 1 and q is not the same.

    >>> round(binary_kl(0.5, 0.25), 4)
    0.1438
    """
    q, p = number("q", q, 0.0, 1.0), number("p", p, 0.0, 1.0)
    return _kl(q, p)


def kl_inverse(q: float, budget: float) -> float:
    """The largest p with `binary_kl(q, p) <= budget`, by bisection down to the last bits, rounded up.

    If q is an observed mean of [0, 1] values and the true mean p satisfies KL(q || p) <= budget, this bounds it. The
    result is never below the exact one, also if `budget` has been rounded.

    Args:
        q: the observed mean, in [0, 1].
        budget: at least 0; infinity gives 1.

    Example:
        >>> round(kl_inverse(0.0, math.log(2)), 4)  # 1 - exp(-budget)
        0.5
        >>> round(kl_inverse(0.1, 0.01), 4)
        0.1477
    """
    q = number("q", q, 0.0, 1.0)
    budget = budget if budget == math.inf else number("budget", budget, 0.0)
    if budget == 0.0 or q == 1.0:
        return q
    # `_kl` may come out a little too large, which would end the search too early.
    budget *= SLACK
    if q == 0.0:
        return min(1.0, next_above(-math.expm1(-budget)))
    low, high = q, 1.0
    while low < (middle := 0.5 * (low + high)) < high:
        if _kl(q, middle) <= budget:
            low = middle
        else:
            high = middle
    # The upper end, so that the result is never below the true bound.
    return high


def _kl(q: float, p: float) -> float:
    if q == p:
        return 0.0
    if p in (0.0, 1.0):
        return math.inf
    if q == 0.0:
        return -math.log1p(-p)
    if q == 1.0:
        return -math.log(p)
    difference = p - q
    return _part(q, p, difference) + _part(1.0 - q, 1.0 - p, -difference)


def _part(q: float, p: float, difference: float) -> float:
    """`q (x - log(1 + x))` for x = (p - q) / q, to full relative precision. `difference` is p - q."""
    x = difference / q
    if not -0.5 < x < 0.5:
        # p / q is infinite if q is tiny.
        return difference - q * (math.log(p / q) if x < math.inf else math.log(p) - math.log(q))
    # log(1 + x) = 2 artanh(s) with s = x / (2 + x), and x - 2 s = x s.
    s = x / (2.0 + x)
    square = s * s
    total, power, odd = 0.0, 1.0, 3
    while True:
        term = power / odd
        if total + term == total:
            return q * (x * s - 2.0 * s * square * total)
        total, power, odd = total + term, power * square, odd + 2
