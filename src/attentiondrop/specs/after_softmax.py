"""Regularisers that act after the softmax: on the weights, or on whole heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..validation import integer, one_of
from .base import Rate, Spec, refuse_learning, set_probability
from .draws import EVERY_LOGIT, Draws

#: In `DropAttention`, a row with less than this share of its weight left counts as one that has lost all of it. The
#: share is a divisor: float32 must be able to hold a gradient divided by it.
LEAST_SHARE = 2.0**-64


@dataclass(frozen=True)
class AttentionDropout(Spec):
    """Ordinary dropout of the attention weights, after the softmax, scaled by `1 / (1 - p)`."""

    p: Rate = 0.1

    name = "attndropout"
    level = "weights"
    headline = ("p",)
    grid = [{"p": p} for p in (0.1, 0.05, 0.2, 0.3, 0.4, 0.5)]
    shown = ("attndropout(p=0.3)",)

    def __post_init__(self) -> None:
        set_probability(self, "p")

    @property
    def draws(self) -> Draws:
        """A uniform for each weight."""
        return Draws("uniform", EVERY_LOGIT)


@dataclass(frozen=True)
class DropAttention(Spec):
    """Zero attention weights with probability `p`, and divide each row by the share of its sum that is left.

    The divisor is a constant in the backward; with its gradient this would be `DropKey`. `by="element"` decides for
    each row by itself, `by="column"` once for each (sample, head, key). Blocks of `span` keys, counted from key 0, are
    dropped together. A row that would lose all of its weight keeps its largest one.

    >>> print(DropAttention(p=0.2, by="column", span=2))
    dropattention(p=0.2,by=column,span=2)
    """

    p: Rate = 0.1
    by: Literal["element", "column"] = "element"
    span: int = 1

    name = "dropattention"
    level = "weights"
    headline = ("p",)
    grid = [*({"p": p} for p in (0.1, 0.05, 0.2, 0.3, 0.5)), {"p": 0.2, "span": 3}]
    shown = ("dropattention(p=0.3)", "dropattention(p=0.3,by=column,span=3)")

    def __post_init__(self) -> None:
        set_probability(self, "p")
        refuse_learning(self, "p")
        one_of("by", self.by, ("element", "column"))
        self._set("span", integer("span", self.span, minimum=1))

    @property
    def draws(self) -> Draws:
        """A uniform for each weight, or one for each key of a (sample, head); the first key of a block decides."""
        return Draws("uniform", EVERY_LOGIT if self.by == "element" else ("batch", "heads", "keys"))


@dataclass(frozen=True)
class DropHead(Spec):
    """Zero the output of each (sample, head) with probability `p` and scale up the kept heads; at least one is kept."""

    p: Rate = 0.1

    name = "drophead"
    level = "heads"
    headline = ("p",)
    grid = [{"p": p} for p in (0.2, 0.05, 0.1, 0.3, 0.4, 0.5)]

    def __post_init__(self) -> None:
        set_probability(self, "p")
        refuse_learning(self, "p")

    @property
    def draws(self) -> Draws:
        """A uniform for each (sample, head)."""
        return Draws("uniform", ("batch", "heads"))


@dataclass(frozen=True)
class HeadMask(Spec):
    """Zero the outputs of `count` heads of each sample. The other heads are not scaled.

    `choice="random"` takes heads at random. `choice="important"` takes those that matter most to the loss: those with
    the largest running mean of |gradient x output|. `attach` keeps these means, so only attached models can use it.

    >>> print(HeadMask(count=2))
    headmask(count=2)
    """

    count: int = 1
    choice: Literal["random", "important"] = "random"

    name = "headmask"
    level = "heads"
    headline = ("count",)
    # The paper masks 18 heads of a model with 18 attentions of eight heads, in both ways.
    grid = [{"count": count, "choice": choice} for count in (1, 2, 3) for choice in ("random", "important")]

    def __post_init__(self) -> None:
        self._set("count", integer("count", self.count, minimum=1))
        one_of("choice", self.choice, ("random", "important"))

    @property
    def draws(self) -> Draws:
        """A uniform for each (sample, head): the heads with the largest are taken. `choice="important"` ignores it."""
        return Draws("uniform", ("batch", "heads"))
