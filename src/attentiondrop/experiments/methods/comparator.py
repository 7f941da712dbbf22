"""What a comparator is: a regulariser that is no attention spec. Each one is a file beside this one.

A `Comparator` is plain data: its fields, its tuning grid, and what it does to a run. What lives as long as a run, such
as a mask of pruned weights, is an `Acting` that the comparator makes for the model of the run.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...specs import Consistency
from ...validation import number
from ..tasks.interface import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Short name -> class, in order of definition.
COMPARATORS: dict[str, type[Comparator]] = {}


class Acting:
    """A comparator at work on the model of one run. Each hook does nothing unless a subclass fills it."""

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, counted from zero. Pruning belongs here: what is left of training then fits again.

        A resumed run calls it for the epochs that are left, after `load_state_dict`.
        """

    def begin_step(self, progress: float) -> None:
        """Called before each step; `progress` is the share of all steps that are done."""

    def batch(self, batch: Batch) -> Batch:
        """The training batch to use instead of this one. Draws come from torch's global generator."""
        return batch

    def loss(self, loss: Tensor) -> Tensor:
        """The loss to use instead of this one, a mean over the batch."""
        return loss

    def end_step(self) -> None:
        """Called after the weights have changed."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""


@dataclass(frozen=True)
class Comparator:
    """Base of all comparators. A subclass with a `name` is known to every command from then on."""

    name: ClassVar[str] = ""
    #: What tuning tries: field -> values.
    grid: ClassVar[dict[str, list[Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            COMPARATORS[cls.name] = cls

    def __str__(self) -> str:
        fields = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
        return f"{self.name}({fields})"

    def model_rates(self) -> dict[str, float]:
        """Rates the model is built with: `dropout` (activations) and `drop_path`."""
        return {}

    def change(self, model: nn.Module) -> None:
        """Change the model after it was built, or replace modules; parameters and `state_dict` keys must stay."""

    def act(self, model: nn.Module) -> Acting | None:
        """What takes part in the training of the model, after `change`; None if nothing does."""
        return None

    @property
    def consistency(self) -> Consistency | None:
        """A consistency loss."""
        return None

    @property
    def label_smoothing(self) -> float:
        """Label smoothing in the loss of the task."""
        return 0.0


@dataclass(frozen=True)
class Dropping(Comparator):
    """Base of comparators that drop something with probability p."""

    p: float = 0.1
    grid = {"p": [0.05, 0.1, 0.2, 0.3]}

    def __post_init__(self) -> None:
        number("p", self.p, 0.0, 1.0)
