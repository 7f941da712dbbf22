"""Rounding upwards: neither arithmetic nor a short text may make a bound smaller than what was proved."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

#: More than the relative error of any formula here that has a few operations: 16 units in the last place.
SLACK = 1.0 + 2.0**-48


def next_above(value: float) -> float:
    """The next larger number: at least the exact sum of which `value` is the rounded one.

    >>> next_above(1.0) > 1.0
    True
    """
    return math.nextafter(value, math.inf)


def fixed_above(value: float, decimals: int, factor: int = 1) -> str:
    """A bound times `factor`, to so many decimals.

    >>> fixed_above(0.12341, 2, factor=100), fixed_above(0.5, 4)
    ('12.35', '0.5000')
    """
    return str((factor * Decimal(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING))


def short_above(value: float) -> str:
    """A bound to four digits; also infinity and NaN.

    >>> short_above(0.12341), short_above(math.inf)
    ('0.1235', 'inf')
    """
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(value)):.4g}"
