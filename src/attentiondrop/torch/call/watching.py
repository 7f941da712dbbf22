"""The interface between a call and whoever measures it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from ...specs import Spec
from .leaves import Driven
from .one_call import Call


class Turn(NamedTuple):
    """The rates that one call uses.

    A new call uses the current rates. Activation checkpointing computes a call again in the backward; it must then use
    the rates of the first time.
    """

    drop: Spec | Driven | None
    #: True where the call is known to be a repetition.
    again: bool = False
    #: The same for compiled code, where only a tensor on the device knows: False for a repetition.
    new: Tensor | None = None


class Watcher(Protocol):
    """Measures what happens to the attention (`attentiondrop.torch.rates.monitoring`)."""

    def turn(self, drop: Spec | Driven | None, seed: Tensor | None, heads: int) -> Turn:
        """Before a call: the rates that it uses."""

    def leave_out(self) -> None:
        """Instead of both: a call that cannot be measured."""

    def measure(self, call: Call, new: Tensor | None = None) -> None:
        """After a call that was not a repetition: measure it."""
