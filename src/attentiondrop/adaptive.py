"""Rates that find their value in training, instead of following a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .errors import bad_argument
from .schedules import Schedule
from .validation import number, one_of


@dataclass(frozen=True)
class EntropyTarget(Schedule):
    """Raise the rate where attention is more peaked than wanted, lower it where it is flatter.

    What is controlled is the *evenness* of the perturbed attention: its entropy divided by that of the uniform
    distribution over the visible keys, 1 for flat and 0 for a single key. `attach` measures it on a few rows in every
    training step and moves the rate by `speed` times what is missing.

    Args:
        target: the evenness to reach.
        low: the least rate.
        high: the largest rate.
        start: the first rate; `low` by default.
        speed: how far the rate moves in a step, as a share of `high - low`, for each unit of evenness that is missing.
        per: "layer" moves one rate by the mean of its heads, "head" one for each (which runs eager, except in a blur).

    Example:
        >>> import attentiondrop as ad
        >>> print(ad.BlurSmoothing(sigma_max=EntropyTarget(0.7, high=2.0)))
        blur(sigma_max=entropy(target=0.7,low=0.0,high=2.0,start=0.0,speed=0.1,per=layer))
    """

    target: float
    low: float = 0.0
    high: float = 0.5
    start: float | None = None
    speed: float = 0.1
    per: Literal["layer", "head"] = "layer"

    name = "entropy"

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", number("target", self.target, 0.0, 1.0))
        self._check("low", "high")
        if isinstance(self.low, Schedule) or isinstance(self.high, Schedule):
            raise bad_argument("low", "numbers as limits", str(self))
        if self.low >= self.high:
            raise bad_argument("low", f"less than high={self.high}", self.low)
        start = self.low if self.start is None else number("start", self.start, self.low, self.high)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "speed", number("speed", self.speed, 0.0))
        one_of("per", self.per, ("layer", "head"))

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """Where it starts: what it is later, only `attentiondrop.torch.attach` knows."""
        return self.start

    def extremes(self) -> Iterator[float]:
        """The limits."""
        yield self.low
        yield self.high
