"""Schedules over the layers of a model, and over the heads of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import bad_argument
from .base import Schedule, between, check_list, evaluate, extremes_of


@dataclass(frozen=True)
class Depth(Schedule):
    """From `first` in the first attached layer to `last` in the last one, as DropKey's authors lower the rate.

    >>> [Depth(0.2, 0.0).at(0.0, layer, 3) for layer in range(3)]
    [0.2, 0.1, 0.0]
    """

    first: float
    last: float

    name = "depth"
    depends_on = "layer"

    def __post_init__(self) -> None:
        self._check("first", "last")

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the layer."""
        share = 0.0 if layers == 1 else layer / (layers - 1)
        return between(self.first, self.last, share, progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """Both ends."""
        yield from extremes_of(self.first, self.last)


@dataclass(frozen=True)
class PerLayer(Schedule):
    """One value, or schedule, for each attached layer, in their order.

    >>> from attentiondrop.schedules import Linear
    >>> PerLayer([0.1, Linear(0.0, 0.2)]).at(0.5, layer=1, layers=2)
    0.1
    """

    values: tuple[float, ...]

    name = "layers"
    depends_on = "layer"

    def __post_init__(self) -> None:
        check_list(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The value of the layer."""
        if layers != len(self.values):
            raise bad_argument("values", f"{layers} values, one for each attached layer", str(self))
        return evaluate(self.values[layer], progress, layer, layers)

    def extremes(self) -> Iterator[float]:
        """The extremes of all layers."""
        yield from extremes_of(*self.values)


@dataclass(frozen=True)
class PerHead(Schedule):
    """One value, or schedule, for each head of a layer. `at` returns a `PerHead` of numbers.

    >>> from attentiondrop.schedules import Linear
    >>> PerHead([0.0, Linear(0.0, 0.2)]).at(0.5)
    PerHead(values=(0.0, 0.1))
    """

    values: tuple[float, ...]

    name = "heads"
    depends_on = "head"

    def __post_init__(self) -> None:
        check_list(self)

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The values of all heads."""
        values = [evaluate(value, progress, layer, layers) for value in self.values]
        if any(isinstance(value, PerHead) for value in values):
            raise bad_argument("values", "one level of heads(...)", str(self))
        return PerHead(tuple(values))

    def extremes(self) -> Iterator[float]:
        """The extremes of all heads."""
        yield from extremes_of(*self.values)
