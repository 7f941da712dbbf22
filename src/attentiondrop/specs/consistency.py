"""The consistency loss. It acts on the outputs of a model, not on one attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import bad_argument
from ..schedules import Schedule
from ..validation import integer, one_of
from .base import Rate, Spec, set_rate


@dataclass(frozen=True)
class Consistency(Spec):
    """A KL loss between the model outputs of `views` independently perturbed passes.

    The loss is `task + weight * KL`, where KL is the mean over the pairs of passes. `direction="forward"` is
    KL(first || second), as in the formula of the paper; "reverse" swaps them, and "symmetric" is the mean of both.
    `task="first"` is the task loss of the first pass, `task="mean"` the mean over all passes.

    >>> print(Consistency(weight=1.0, direction="symmetric"))
    consistency(weight=1.0,direction=symmetric)
    """

    weight: Rate = 0.5
    views: int = 2
    direction: Literal["forward", "reverse", "symmetric"] = "forward"
    task: Literal["first", "mean"] = "first"

    name = "consistency"
    level = "model"
    headline = ("weight",)
    grid = [{"weight": weight} for weight in (0.5, 0.1, 0.2, 1.0, 2.0, 5.0)]

    def __post_init__(self) -> None:
        set_rate(self, "weight")
        if not _is_over_training(self.weight):
            raise bad_argument("weight", "a number or a schedule over training", str(self.weight))
        self._set("views", integer("views", self.views, minimum=2))
        one_of("direction", self.direction, ("forward", "reverse", "symmetric"))
        one_of("task", self.task, ("first", "mean"))

    @property
    def consistency(self) -> Consistency:
        """This spec itself."""
        return self


def _is_over_training(weight: Any) -> bool:
    """Whether the weight depends on nothing but the progress: a loss has no layer, no head and no attention."""
    if not isinstance(weight, Schedule):
        return True
    return weight.depends_on == "progress" and all(map(_is_over_training, weight.inside()))


def first_consistency(specs: Iterable[Spec]) -> Consistency | None:
    """The `Consistency` of the first spec that has one; None if none has."""
    return next((spec.consistency for spec in specs if spec.consistency is not None), None)


def r_drop(weight: float = 1.0, views: int = 2) -> Consistency:
    """The consistency loss of R-Drop: symmetric KL, and the task loss averaged over the views.

    R-Drop needs no attached spec: the model's own dropout makes the views differ. `weight` is `alpha` in R-Drop's code.

    >>> print(r_drop())
    consistency(weight=1.0,direction=symmetric,task=mean)
    """
    return Consistency(weight=weight, views=views, direction="symmetric", task="mean")
