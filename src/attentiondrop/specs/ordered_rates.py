"""The check that one rate of a spec never exceeds another one, also where they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..adaptive import EntropyTarget, Learnable
from ..errors import bad_argument
from ..schedules import PerHead, Schedule
from ..schedules.base import extremes_of
from .base import Spec


def check_order(spec: Spec, lower: str, upper: str) -> None:
    """Raise if the rate in the field `lower` can exceed the rate in the field `upper`.

    Nobody knows where adaptive and learned rates will go, so all values that they can reach must fit. Other schedules
    are compared where they are evaluated: `Spec.at` builds a spec of numbers, which is checked here, too.
    """
    low, high = getattr(spec, lower), getattr(spec, upper)
    if isinstance(low, EntropyTarget | Learnable) or isinstance(high, EntropyTarget | Learnable):
        largest, smallest = max(extremes_of(low)), min(extremes_of(high))
        if largest > smallest:
            raise bad_argument(lower, _expected(upper, high, largest, smallest), _shown(low))
    elif any(one > other for one, other in _by_head(low, high)):
        raise bad_argument(lower, f"at most {upper}={high}", _shown(low))


def _expected(upper: str, high: Any, largest: float, smallest: float) -> str:
    if isinstance(high, EntropyTarget | Learnable):
        return f"at most {smallest}, the lowest that {upper}={high} can reach (give that low={largest} or more)"
    return f"a rate that cannot exceed {upper}={high} (give it high={smallest} or less)"


def _by_head(low: Any, high: Any) -> Iterator[tuple[float, float]]:
    """The pairs of numbers to compare, one for each head; none if a schedule is still to be evaluated."""
    ones, others = _numbers(low), _numbers(high)
    heads = max(len(ones), len(others))
    # Lists of different lengths are refused where the number of heads is known.
    return zip(ones * heads if len(ones) == 1 else ones, others * heads if len(others) == 1 else others, strict=False)


def _numbers(value: Any) -> list[float]:
    values = list(value.values) if isinstance(value, PerHead) else [value]
    return [] if any(isinstance(entry, Schedule) for entry in values) else values


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, Schedule) else value
