"""The places of regularisers in one fused pass over the keys.

A pass does, in this order: blur (attention on blurred keys), noise, one kind of dropping logits, softmax, one kind of
dropping weights, `dropout_p`, and factors on whole heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .leaves import Active

PlaceInPass = Literal["blur", "noise", "drop", "dropout", "heads"]
PLACES: tuple[PlaceInPass, ...] = ("blur", "noise", "drop", "dropout", "heads")
#: A pass has room for one regulariser at each of these places.
SINGLE = {"noise": "noises", "drop": "ways of dropping logits", "dropout": "dropouts of the weights"}


class Drop(NamedTuple):
    """A drop of logits: "zero", "-inf", "key" or "column".

    For the first two, how many of the largest are candidates. "column" decides once for all rows of a head.
    """

    kind: str
    top: int = 0


class WeightDrop(NamedTuple):
    """A drop of weights; the defaults are those of dropout."""

    #: Whether each row is divided by the share of its sum that is left, rather than by 1 - p.
    by_share: bool = False
    #: Whether one decision is for all rows of a head.
    by_column: bool = False
    #: How many keys go together; the first one decides.
    span: int = 1


def _always(spec: Any) -> None:
    return None


class Stage(NamedTuple):
    """How a fused pass does one regulariser."""

    place: PlaceInPass
    #: The field that is its rate.
    rate: str
    #: Given the spec, the reason why the pass cannot do it, or None.
    why_not: Callable[[Any], str | None] = _always
    #: Given the spec and the number of keys, what it drops. Only regularisers at the place "drop" have it.
    drop: Callable[[Any, int], Drop] | None = None
    #: The same for the place "dropout", where it is not dropout itself.
    weights: Callable[[Any, int], WeightDrop] | None = None


class Plan(NamedTuple):
    """The regularisers of a call by place; a blur of width 1 is the identity and left out."""

    blurs: tuple[Active, ...]
    noise: Active | None
    drop: Active | None
    dropout: Active | None
    heads: tuple[Active, ...]

    def decides_inside(self, dropout_p: float) -> bool:
        """Whether single logits or weights are changed, which torch's own attention kernels cannot do."""
        return dropout_p > 0 or any(leaf is not None for leaf in (self.noise, self.drop, self.dropout))
