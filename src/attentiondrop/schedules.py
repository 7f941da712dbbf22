"""Rates that change with the progress of training, with the depth of the layer, or from head to head.

Any rate of a spec (`p`, `sigma`, `sigma_min`, `sigma_max`, `weight`) may be one of these instead of a number::

    ad.HardMasking(p=ad.schedules.Warmup(0.1, share=0.2))
    ad.DropKey(p=ad.schedules.Depth(0.3, 0.0))

A schedule is data, like a spec: frozen, validated, comparable, with the same text and dictionary forms. `at` evaluates
it; `Spec.at` evaluates a whole spec, and `attach` does that for every layer when `set_progress` is called.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from .errors import ArgumentError, bad_argument
from .validation import number

#: Short name -> class.
REGISTRY: dict[str, type[Schedule]] = {}


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules."""

    #: The name in texts and dictionaries.
    name: ClassVar[str] = ""

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
            object.__setattr__(self, field, _value(field, getattr(self, field)))


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at all times.

    >>> Constant(0.1).at(0.7)
    0.1
    """

    value: float

    name = "constant"

    def __post_init__(self) -> None:
        self._check("value")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value."""
        return evaluate(self.value, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """The value."""
        yield from _extremes(self.value)


@dataclass(frozen=True)
class Linear(Schedule):
    """From `start` to `end` in a straight line.

    >>> Linear(0.0, 0.2).at(0.5)
    0.1
    """

    start: float
    end: float

    name = "linear"

    def __post_init__(self) -> None:
        self._check("start", "end")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the line."""
        return _between(self.start, self.end, progress, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from _extremes(self.start, self.end)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From `start` to `end` along half a cosine: slow, fast, slow.

    >>> round(Cosine(0.2, 0.0).at(0.25), 4)
    0.1707
    """

    start: float
    end: float

    name = "cosine"

    def __post_init__(self) -> None:
        self._check("start", "end")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the curve."""
        share = 0.5 - 0.5 * math.cos(math.pi * progress)
        return _between(self.start, self.end, share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from _extremes(self.start, self.end)


@dataclass(frozen=True)
class Warmup(Schedule):
    """From 0 up to `to` during the first `share` of training, then `to`, which may itself be a schedule.

    >>> Warmup(0.1, share=0.5).at(0.25), Warmup(0.1, share=0.5).at(0.9)
    (0.05, 0.1)
    """

    to: float
    share: float = 0.1

    name = "warmup"

    def __post_init__(self) -> None:
        self._check("to")
        object.__setattr__(self, "share", number("share", self.share, 0.0, 1.0))

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value on the ramp, or `to` after it."""
        reached = 1.0 if progress >= self.share else progress / self.share
        return _between(0.0, self.to, reached, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """0 and the target."""
        yield from _extremes(0.0, self.to)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Straight lines between `values[i]` at progress `at_progress[i]`; constant before the first and after the last.

    >>> v_shape(0.2, turn=0.5).at(0.75)
    0.1
    """

    at_progress: tuple[float, ...]
    values: tuple[float, ...]

    name = "piecewise"

    def __post_init__(self) -> None:
        _check_points(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """On the line between two neighbours."""
        places = self.at_progress
        after = next((i for i, place in enumerate(places) if place >= progress), len(places) - 1)
        before = max(after - 1, 0) if progress < places[after] else after
        gap = places[after] - places[before]
        share = 0.0 if gap == 0 else (progress - places[before]) / gap
        return _between(self.values[before], self.values[after], share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """All corners."""
        yield from _extremes(*self.values)


@dataclass(frozen=True)
class Steps(Schedule):
    """`values[i]` from the progress `at_progress[i]` on.

    >>> Steps([0.0, 0.5], [0.0, 0.2]).at(0.49), Steps([0.0, 0.5], [0.0, 0.2]).at(0.5)
    (0.0, 0.2)
    """

    at_progress: tuple[float, ...]
    values: tuple[float, ...]

    name = "steps"

    def __post_init__(self) -> None:
        _check_points(self)
        if self.at_progress[0] != 0.0:
            raise bad_argument("at_progress", "0 as the first", self.at_progress)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the last step that was reached."""
        reached = max(i for i, place in enumerate(self.at_progress) if place <= progress)
        return evaluate(self.values[reached], progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """All steps."""
        yield from _extremes(*self.values)


@dataclass(frozen=True)
class Depth(Schedule):
    """From `first` in the first attached layer to `last` in the last one, as DropKey's authors lower the rate.

    >>> [Depth(0.2, 0.0).at(0.0, layer, 3) for layer in range(3)]
    [0.2, 0.1, 0.0]
    """

    first: float
    last: float

    name = "depth"

    def __post_init__(self) -> None:
        self._check("first", "last")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the layer."""
        share = 0.0 if layers == 1 else layer / (layers - 1)
        return _between(self.first, self.last, share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from _extremes(self.first, self.last)


@dataclass(frozen=True)
class PerLayer(Schedule):
    """One value, or schedule, for each attached layer, in their order.

    >>> PerLayer([0.1, Linear(0.0, 0.2)]).at(0.5, layer=1, layers=2)
    0.1
    """

    values: tuple[float, ...]

    name = "layers"

    def __post_init__(self) -> None:
        _check_list(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the layer."""
        if layers != len(self.values):
            raise bad_argument("values", f"{layers} values, one for each attached layer", str(self))
        return evaluate(self.values[layer], progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """The extremes of all layers."""
        yield from _extremes(*self.values)


@dataclass(frozen=True)
class PerHead(Schedule):
    """One value, or schedule, for each head of a layer. `at` returns a `PerHead` of numbers.

    >>> PerHead([0.0, Linear(0.0, 0.2)]).at(0.5)
    PerHead(values=(0.0, 0.1))
    """

    values: tuple[float, ...]

    name = "heads"

    def __post_init__(self) -> None:
        _check_list(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The values of all heads."""
        values = [evaluate(value, progress, layer, layers) for value in self.values]
        if any(isinstance(value, PerHead) for value in values):
            raise bad_argument("values", "one level of heads(...)", str(self))
        return PerHead(tuple(values))

    def extremes(self) -> Iterator[float]:
        """The extremes of all heads."""
        yield from _extremes(*self.values)


def v_shape(high: float, low: float = 0.0, turn: float = 0.1) -> Piecewise:
    """Down from `high` to `low` until the progress `turn`, then up again: the schedule of Scheduled DropHead."""
    return Piecewise((0.0, turn, 1.0), (high, low, high))


def evaluate(value: Any, progress: float, layer: int = 0, layers: int = 1) -> Any:
    """The value of a schedule; a number stays as it is."""
    return value.at(progress, layer, layers) if isinstance(value, Schedule) else value


def from_dict(data: dict[str, Any]) -> Schedule:
    """The schedule that `Schedule.to_dict` described.

    >>> from_dict(Linear(0.0, 0.2).to_dict())
    Linear(start=0.0, end=0.2)
    """
    fields = dict(data)
    return build(fields.pop("schedule", None), {key: _from_plain(value) for key, value in fields.items()})


def build(name: Any, fields: dict[str, Any]) -> Schedule:
    """Construct a schedule from its name and fields; an unknown name or field is an error that lists the known ones."""
    if name not in REGISTRY:
        raise ArgumentError(f"unknown schedule {name!r}: expected one of {', '.join(REGISTRY)}")
    cls = REGISTRY[name]
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            raise ArgumentError(f"{name}: unknown field {field!r}, expected one of {', '.join(known)}")
    required = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
    for field in required:
        if field not in fields:
            raise ArgumentError(f"{name}: field {field!r} is missing")
    return cls(**fields)


def check_progress(progress: Any) -> float:
    """A progress in [0, 1]."""
    return number("progress", progress, 0.0, 1.0)


def _between(start: Any, end: Any, share: float, progress: float, layer: int, layers: int) -> Any:
    low, high = (evaluate(value, progress, layer, layers) for value in (start, end))
    if isinstance(low, PerHead) or isinstance(high, PerHead):
        raise bad_argument("values", "heads(...) outside of other schedules, not inside one", str(end))
    # Exact at both ends: 0.1 + (0.3 - 0.1) is not 0.3.
    return high if share == 1.0 else low + (high - low) * share


def _extremes(*values: Any) -> Iterator[float]:
    for value in values:
        if isinstance(value, Schedule):
            yield from value.extremes()
        else:
            yield value


def _value(name: str, value: Any) -> Any:
    return value if isinstance(value, Schedule) else number(name, value, -math.inf)


def _check_list(schedule: Any, field: str = "values") -> None:
    values = getattr(schedule, field)
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) == 0:
        raise bad_argument(field, "a list of numbers or schedules", values)
    object.__setattr__(schedule, field, tuple(_value(field, value) for value in values))


def _check_points(schedule: Any) -> None:
    _check_list(schedule)
    _check_list(schedule, "at_progress")
    places = schedule.at_progress
    numbers = all(isinstance(place, float) and 0.0 <= place <= 1.0 for place in places)
    if not numbers or any(one >= other for one, other in pairwise(places)):
        raise bad_argument("at_progress", "rising numbers in [0, 1]", list(places))
    if len(places) != len(schedule.values):
        raise bad_argument("values", f"{len(places)} values, one for each progress", list(schedule.values))


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
