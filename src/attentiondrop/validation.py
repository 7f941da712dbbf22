"""Checks that all parts of the library use, so that the same mistake gives the same message everywhere."""

from __future__ import annotations

import math
from typing import Any

from .errors import bad_argument

#: The largest integer that torch and NumPy have.
_LARGEST = 2**63 - 1


def number(name: str, value: Any, minimum: float, maximum: float = math.inf) -> float:
    """Return `value` as a finite float within the limits, or raise an error that names the argument."""
    # (torch.compile can trace comparisons of a number that it does not know yet, but not `math.isfinite`.)
    if type(value) is float and minimum <= value <= maximum and -math.inf < value < math.inf:
        return value  # without a text for an error that nobody sees
    expected = "a number" if minimum == -math.inf else f"a number >= {minimum:g}"
    if maximum != math.inf:
        expected = f"a number in [{minimum:g}, {maximum:g}]"
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise bad_argument(name, expected, value)
    try:
        result = float(plain)
    except OverflowError:
        raise bad_argument(name, expected, value) from None
    if not -math.inf < result < math.inf or not minimum <= result <= maximum:
        raise bad_argument(name, expected, value)
    return result


def integer(name: str, value: Any, minimum: int | None = None) -> int:
    """Return `value` as an int of at least `minimum` that fits into 64 bits, or raise an error."""
    result = number(name, value, -math.inf if minimum is None else minimum)
    # `result` is a float, which is not exact for integers beyond 2^53.
    plain = _plain(value)
    exact = plain if isinstance(plain, int) else int(result)
    if result != exact and not isinstance(plain, int):
        raise bad_argument(name, "an integer" + ("" if minimum is None else f" >= {minimum}"), value)
    if abs(exact) > _LARGEST:
        raise bad_argument(name, f"an integer of at most {_LARGEST}", value)
    return exact


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise bad_argument(name, "one of " + ", ".join(map(repr, choices)), value)


def _plain(value: Any) -> Any:
    """A scalar of NumPy or torch as a number of Python: most of them are no instances of int or float."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
