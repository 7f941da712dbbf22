"""The base of all schedules, their texts and dictionaries, and what they share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import ArgumentError, bad_argument, did_you_mean
from ..validation import number

#: Short name -> class.
REGISTRY: dict[str, type[Schedule]] = {}


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules."""

    #: The name in texts and dictionaries.
    name: ClassVar[str] = ""
    #: What the value depends on. "measurement": training itself moves it, and nothing else knows it.
    depends_on: ClassVar[Literal["progress", "layer", "head", "measurement"]] = "progress"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            REGISTRY[cls.name] = cls

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value at a progress in [0, 1], for one of several layers: a float, or `PerHead` floats."""
        raise NotImplementedError

    def extremes(self) -> Iterator[float]:
        """Values that include the smallest and the largest one, so that a new spec can check them."""
        raise NotImplementedError

    def corners(self) -> Iterator[float]:
        """Where a line over the progress bends, and both sides of a jump, also in the schedules inside this one.

        Between two neighbours the value has no kink. So whoever checks rates against each other looks at these places.
        """
        for inner in self.inside():
            yield from inner.corners()

    def inside(self) -> Iterator[Schedule]:
        """The schedules that are values of this one."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, Schedule):
                    yield inner

    def __str__(self) -> str:
        fields = (f"{field.name}={_text(getattr(self, field.name))}" for field in dataclasses.fields(self))
        return f"{self.name}({','.join(fields)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types that `from_dict` turns back into an equal schedule."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"schedule": self.name} | fields

    def _check(self, *fields: str) -> None:
        """Check the named fields: numbers become floats, schedules stay as they are."""
        for field in fields:
            object.__setattr__(self, field, checked_value(field, getattr(self, field)))


def evaluate(value: Any, progress: float, layer: int = 0, layers: int = 1) -> Any:
    """The value of a schedule; a number stays as it is."""
    return value.at(progress, layer, layers) if isinstance(value, Schedule) else value


def from_dict(data: dict[str, Any]) -> Schedule:
    """The schedule that `Schedule.to_dict` described.

    >>> from_dict({"schedule": "linear", "start": 0.0, "end": 0.2})
    Linear(start=0.0, end=0.2)
    """
    fields = dict(data)
    return build(fields.pop("schedule", None), {key: _from_plain(value) for key, value in fields.items()})


def build(name: Any, fields: dict[str, Any], values: Sequence[Any] = ()) -> Schedule:
    """Construct a schedule from its name and fields; `values` are those of its first fields, given without their names.

    An unknown name or field is an error that lists the known ones.
    """
    if name not in REGISTRY:
        hint = did_you_mean(name, REGISTRY)
        raise ArgumentError(f"unknown schedule {name!r}: expected one of {', '.join(REGISTRY)}{hint}")
    cls = REGISTRY[name]
    known = [field.name for field in dataclasses.fields(cls)]
    if len(values) > len(known):
        raise ArgumentError(f"{name}: expected at most {len(known)} values ({', '.join(known)}), found {len(values)}")
    first = dict(zip(known, values, strict=False))
    for field in fields:
        if field in first:
            raise ArgumentError(f"{name}: field {field!r} is given twice")
        if field not in known:
            hint = did_you_mean(field, known)
            raise ArgumentError(f"{name}: unknown field {field!r}, expected one of {', '.join(known)}{hint}")
    required = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
    for field in required:
        if field not in first | fields:
            raise ArgumentError(f"{name}: field {field!r} is missing")
    return cls(**first, **fields)


def check_progress(progress: Any) -> float:
    """A progress in [0, 1]."""
    return number("progress", progress, 0.0, 1.0)


def between(start: Any, end: Any, share: float, progress: float, layer: int, layers: int) -> Any:
    """The value at `share` of the way from `start` to `end`, which may be schedules themselves."""
    low, high = (evaluate(value, progress, layer, layers) for value in (start, end))
    # A schedule whose value is a schedule again has a value for each head.
    if isinstance(low, Schedule) or isinstance(high, Schedule):
        raise bad_argument("values", "heads(...) outside of other schedules, not inside one", str(end))
    # Exact at both ends: 0.2 + (0.9 - 0.2) is not 0.9.
    return high if share == 1.0 else low + (high - low) * share


def extremes_of(*values: Any) -> Iterator[float]:
    """The extremes of several values."""
    for value in values:
        if isinstance(value, Schedule):
            yield from value.extremes()
        else:
            yield value


def checked_value(name: str, value: Any) -> Any:
    """A number as a float, or a schedule as it is.

    What training itself moves is no value of another schedule: that could only take its first value, for good.
    """
    if isinstance(value, Schedule) and value.depends_on == "measurement":
        expected = f"a number or a schedule: {value.name}(...) must be a whole rate (for some layers, use patterns)"
        raise bad_argument(name, expected, str(value))
    return value if isinstance(value, Schedule) else number(name, value, -math.inf)


def check_list(schedule: Any, field: str = "values") -> None:
    """Check a field that is a list of numbers or schedules, and make it a tuple."""
    values = getattr(schedule, field)
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) == 0:
        raise bad_argument(field, "a list of numbers or schedules", values)
    object.__setattr__(schedule, field, tuple(checked_value(field, value) for value in values))


def _text(value: Any) -> str:
    return "[" + ",".join(map(_text, value)) + "]" if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value.to_dict() if isinstance(value, Schedule) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(entry) for entry in value]
    return from_dict(value) if isinstance(value, dict) else value
