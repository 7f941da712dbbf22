"""Checks that every part of the library shares, so that one mistake has one wording."""

from __future__ import annotations

import math
from typing import Any

from .errors import bad_argument

#: Of integers: torch and NumPy have no larger ones.
_LARGEST = 2**63 - 1


def number(name: str, value: Any, minimum: float, maximum: float = math.inf) -> float:
    """`value` as a finite float within the limits, or an error that names the argument."""
    expected = "a number" if minimum == -math.inf else f"a number >= {minimum:g}"
    if maximum != math.inf:
        expected = f"a number in [{minimum:g}, {maximum:g}]"
    # NumPy scalars are numbers too, but most are not registered as int or float.
    plain = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise bad_argument(name, expected, value)
    try:
        result = float(plain)
    except OverflowError:
        raise bad_argument(name, expected, value) from None
    if not math.isfinite(result) or not minimum <= result <= maximum:
        raise bad_argument(name, expected, value)
    return result


def integer(name: str, value: Any, minimum: int | None = None) -> int:
    """`value` as an int of at least `minimum` that 64 bits hold, or an error that names the argument."""
    result = number(name, value, -math.inf if minimum is None else minimum)
    # As a float, an integer beyond 2^53 would become one of its neighbours.
    exact = int(value) if isinstance(value, int) else int(result)
    if result != exact and not isinstance(value, int):
        raise bad_argument(name, "an integer" + ("" if minimum is None else f" >= {minimum}"), value)
    if abs(exact) > _LARGEST:
        raise bad_argument(name, f"an integer of at most {_LARGEST}", value)
    return exact


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise bad_argument(name, "one of " + ", ".join(map(repr, choices)), value)
