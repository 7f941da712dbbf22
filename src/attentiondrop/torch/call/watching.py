"""Somebody who looks at a call: what the call tells, and what it is told."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from ...specs import Spec
from .inputs import Inputs
from .leaves import Active, Driven


class Turn(NamedTuple):
    """How one call is made: with the rates of now, or, computed again in the backward, with those of its first time."""

    drop: Spec | Driven | None
    #: Whether it is known to be computed again.
    again: bool = False
    #: Under a compiler only the device can tell: False where it is computed again.
    new: Tensor | None = None


class Watcher(Protocol):
    """Measures what happens to the attention (`attentiondrop.torch.rates.monitoring`)."""

    def turn(self, drop: Spec | Driven | None, seed: Tensor | None, heads: int) -> Turn:
        """Asked before a call: what it does."""

    def measure(
        self, inputs: Inputs, leaves: list[Active], is_causal: bool, softcap: float | None, new: Tensor | None = None
    ) -> None:
        """Told after a call, unless it was computed again."""
