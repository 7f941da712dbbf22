"""A comparator is a regulariser that is not an attention spec. Each one has its own file beside this one.

A `Comparator` is plain data: its fields, its tuning grid, and what it does to a run. Anything that lives during a run,
such as a mask of pruned weights, is in an `Acting` that the comparator makes for the model of the run.
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
    """A comparator at work on the model of one run. Each hook does nothing unless a subclass overrides it."""

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, counted from zero. Prune here: the rest of training then adapts the other weights.

        A resumed run calls this for the remaining epochs, after `load_state_dict`.
        """

    def begin_step(self, progress: float) -> None:
        """Called before each step. `progress` is the share of all steps that are done."""

    def batch(self, batch: Batch) -> Batch:
        """The training batch to use instead of this one. Draw from torch's global generator."""
        return batch

    def loss(self, loss: Tensor) -> Tensor:
        """The loss to use instead of this one. Both are means over the batch."""
        return loss

    def end_step(self) -> None:
        """Called after the weights have changed."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True)
class Comparator:
    """Base of all comparators. A subclass with a `name` registers itself and is known to every command."""

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
        """Rates to build the model with: `dropout` (of activations) and `drop_path`."""
        return {}

    def change(self, model: nn.Module) -> None:
        """Change the built model, for example replace modules. Parameters and `state_dict` keys must stay."""

    def act(self, model: nn.Module) -> Acting | None:
        """The object that takes part in training, made after `change`; None if there is none."""
        return None

    @property
    def consistency(self) -> Consistency | None:
        """The consistency loss to train with, if any."""
        return None

    @property
    def label_smoothing(self) -> float:
        """The label smoothing in the loss of the task."""
        return 0.0


@dataclass(frozen=True)
class Dropping(Comparator):
    """Base of comparators that drop something with probability p."""

    p: float = 0.1
    grid = {"p": [0.05, 0.1, 0.2, 0.3]}

    def __post_init__(self) -> None:
        number("p", self.p, 0.0, 1.0)
