"""Regularisers that act after the softmax: on the weights, or on whole heads."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Rate, Spec, refuse_learning, set_probability
from .draws import EVERY_LOGIT, Draws


@dataclass(frozen=True)
class AttentionDropout(Spec):
    """Ordinary dropout of the attention weights, after the softmax, scaled by `1 / (1 - p)`."""

    p: Rate = 0.1

    name = "attndropout"
    level = "weights"
    headline = ("p",)
    grid = {"p": [0.05, 0.1, 0.2, 0.3]}
    shown = ("attndropout(p=0.3)",)

    def __post_init__(self) -> None:
        set_probability(self, "p")

    @property
    def draws(self) -> Draws:
        """A uniform for each weight."""
        return Draws("uniform", EVERY_LOGIT)


@dataclass(frozen=True)
class DropHead(Spec):
    """Zero the output of each (sample, head) with probability `p` and scale up the kept heads; at least one is kept."""

    p: Rate = 0.1

    name = "drophead"
    level = "heads"
    headline = ("p",)
    grid = {"p": [0.05, 0.1, 0.2]}

    def __post_init__(self) -> None:
        set_probability(self, "p")
        refuse_learning(self, "p")

    @property
    def draws(self) -> Draws:
        """A uniform for each (sample, head)."""
        return Draws("uniform", ("batch", "heads"))
