"""Student's t distribution with a whole number of degrees of freedom: finite sums, so that no SciPy is needed."""

from __future__ import annotations

import functools
import math

from ...validation import integer, number


def central_probability(t: float, freedom: int) -> float:
    """The probability that |T| <= |t|; the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.

    >>> round(central_probability(12.706, 1), 4)
    0.95
    """
    freedom = integer("freedom", freedom, minimum=1)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term = cosine if odd else 1.0
    total = term
    for power in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return min(1.0, 2 / math.pi * (angle + sine * total) if odd else sine * total)


@functools.cache
def central_quantile(probability: float, freedom: int) -> float:
    """The t for which |T| <= t has this probability, by bisection to the last bit.

    >>> round(central_quantile(0.95, 4), 3)
    2.776
    """
    probability = number("probability", probability, 0.0, 0.999999)
    low, high = 0.0, 1.0
    while central_probability(high, freedom) < probability:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if central_probability(middle, freedom) < probability else (low, middle)
    return high
