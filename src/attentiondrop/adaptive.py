"""Rates that training itself adjusts, instead of a fixed schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .errors import bad_argument
from .schedules import Schedule
from .validation import integer, number, one_of


@dataclass(frozen=True)
class EntropyTarget(Schedule):
    """Raise the rate where attention is more peaked than wanted, lower it where attention is flatter.

    The controlled value is the *evenness* of the perturbed attention: its entropy divided by the entropy of the uniform
    distribution over the visible keys (1: all keys have equal weight, 0: one key has all of it). In every training
    step, `attach` measures the evenness on a few rows and moves the rate by
    `speed * (high - low) * (target - evenness)`, where `evenness` is a running mean.

    Args:
        target: the evenness to reach.
        low: the smallest rate.
        high: the largest rate.
        start: the first rate; `low` by default.
        speed: how fast the rate moves.
        per: "layer" has one rate, moved by the mean evenness of the heads. "head" has one rate for each head, and runs
            eager except in a blur.

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
    depends_on = "measurement"

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
        """The first value. The later ones are known only to `attentiondrop.torch.attach`."""
        return self.start

    def extremes(self) -> Iterator[float]:
        """The limits."""
        yield self.low
        yield self.high


@dataclass(frozen=True)
class Learnable(Schedule):
    """A rate that the optimiser learns, between `low` and `high`, starting at `init`.

    `attach` creates a parameter for it. The parameter belongs to the attachment, not to the model: give
    `attachment.parameters()` to the optimiser. A sigma is learned through the Gaussian kernel. A `p` is learned through
    a relaxed Bernoulli: the decision stays 0 or 1, and its gradient is that of `sigmoid((logit(p) - logit(u)) / 0.5)`.
    A `p` can be learned in hard masking with `fill="zero"` and in dropout of the weights.

    Args:
        init: the first value.
        low: the rate stays above this.
        high: the rate stays below this.
        heads: the number of heads, to learn one value for each head; None for one value for the whole layer.

    Example:
        >>> import attentiondrop as ad
        >>> print(ad.BlurSmoothing(sigma_max=Learnable(0.5, high=2.0)))
        blur(sigma_max=learnable(init=0.5,low=0.0,high=2.0,heads=None))
    """

    init: float
    low: float = 0.0
    high: float = 0.5
    heads: int | None = None

    name = "learnable"
    depends_on = "measurement"

    def __post_init__(self) -> None:
        self._check("init", "low", "high")
        if any(isinstance(value, Schedule) for value in (self.init, self.low, self.high)):
            raise bad_argument("init", "numbers", str(self))
        if not self.low < self.init < self.high:
            raise bad_argument("init", f"a number between low={self.low} and high={self.high}", self.init)
        if self.heads is not None:
            object.__setattr__(self, "heads", integer("heads", self.heads, minimum=1))

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Any:
        """The first value. The later ones are known only to `attentiondrop.torch.attach`."""
        return self.init

    def extremes(self) -> Iterator[float]:
        """The limits."""
        yield self.low
        yield self.high
