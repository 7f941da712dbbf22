"""A comparator is a regulariser that is not an attention spec. Each one has its own file in `comparators/`.

A `Comparator` is plain data: its fields, its tuning grid, and what it does to a run. Anything that lives during a run,
such as a mask of pruned weights, is in an `Acting` that the comparator makes for the model of the run.

No file in `comparators/` imports a framework at its top: texts of methods are read without one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ...specs import Consistency, Spec
from ...validation import integer, number
from ..tasks.interface import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Short name -> class, in order of definition.
COMPARATORS: dict[str, type[Comparator]] = {}

Group = Literal["hidden", "weights", "data", "loss", "structure", "controls"]
#: What tuning tries: a list of settings (field -> value), or field -> values for all their combinations.
Grid = Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]


class Pass(NamedTuple):
    """One pass of the model over a batch, in training: what a comparator may base a loss on."""

    inputs: Any
    targets: Any
    #: [batch, ..., classes]
    logits: Tensor
    #: [batch, ...], True at the positions that count; None for all of them.
    mask: Tensor | None
    #: From an output of the model to its logits.
    read: Callable[[Any], Tensor]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` [batch, ...] over the positions that count."""
        if self.mask is None:
            return values.mean()
        return values.masked_fill(~self.mask, 0.0).sum() / self.mask.sum().clamp_min(1)


class Acting:
    """A comparator at work on the model of one run. Each hook does nothing unless a subclass overrides it."""

    #: Hooks that only work on tensors, in place where they keep something. A captured step may contain them: a replay
    #: repeats what they do with tensors, and calls no Python.
    on_tensors: ClassVar[tuple[str, ...]] = ()
    #: Whether its state may differ between the processes of a run. A resumed run then gives each process its own one.
    differs: ClassVar[bool] = False

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, counted from zero. Prune here: the rest of training then adapts the other weights.

        A resumed run calls this for the remaining epochs, after `load_state_dict`.
        """

    def begin_step(self, progress: float) -> None:
        """Called before each step. `progress` is the share of all steps that are done."""

    def batch(self, batch: Batch) -> Batch:
        """The training batch to use instead of this one. Draw from torch's global generator."""
        return batch

    def targets(self, targets: Any) -> Any:
        """The targets to compute the loss with instead of these. They are those of one part of a batch."""
        return targets

    def task_loss(self, loss: Tensor, made: Pass) -> Tensor:
        """The loss of one pass to use instead of this one. Both are means over the batch."""
        return loss

    def loss(self, loss: Tensor) -> Tensor:
        """The loss of the whole step to use instead of this one. Both are means over the batch."""
        return loss

    def end_step(self) -> None:
        """Called after the weights have changed."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: copies of tensors, and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Tensors must be filled in place."""


@dataclass(frozen=True)
class Comparator:
    """Base of all comparators. A subclass with a `name` registers itself and is known to every command."""

    name: ClassVar[str] = ""
    #: The group that `compare --methods` knows it under. Without one it is a part of other methods, and not in `all`.
    group: ClassVar[Group | None] = None
    #: What tuning tries. The published default comes first.
    grid: ClassVar[Grid] = ()
    #: For lists of methods: what it perturbs, what it computes in one line, and who published it.
    perturbs: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    #: Whether the model in evaluation is the same as without it.
    training_only: ClassVar[bool] = True
    #: Whether it skips parts of the model for a whole batch: views of a consistency loss need batches of their own.
    draws_per_batch: ClassVar[bool] = False
    #: How the attention is computed if not as in the model: in a few words.
    kernel: ClassVar[str] = ""
    #: Why a step with it cannot be captured as a CUDA graph; empty if it can.
    not_captured: ClassVar[str] = ""
    #: The settings of training that `training` returns. Two parts of a method must not replace the same one.
    replaces: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            COMPARATORS[cls.name] = cls

    def __post_init__(self) -> None:
        """Check the fields, then store numbers in the types of their fields: `p=1` and `p=1.0` have one text."""
        self._check()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # (Types are texts in a module with `from __future__ import annotations`.)
            if field.type in ("float", float):
                object.__setattr__(self, field.name, number(field.name, value, -math.inf) + 0.0)
            elif field.type in ("int", int):
                object.__setattr__(self, field.name, integer(field.name, value))

    def _check(self) -> None:
        """Refuse fields with wrong values. A subclass overrides this, and not `__post_init__`."""

    def __str__(self) -> str:
        fields = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
        return f"{self.name}({fields})".replace("'", "")

    def training(self, settings: Any) -> dict[str, Any]:
        """Settings of training to use instead of those of the recipe (`settings`): those that `replaces` names."""
        return {}

    def check_training(self, settings: Any) -> None:
        """Refuse settings of training that do not go with it. They are those that all parts of the method have made."""

    def counts_from(self, epochs: int) -> int:
        """The first epoch, counted from zero, whose weights may be chosen as the best. Pruning comes before it."""
        return 0

    def model_rates(self) -> dict[str, float]:
        """Rates to build the model with: `dropout` (of activations) and `drop_path`."""
        return {}

    def build(self, model: nn.Module) -> None:
        """Change what the model is, in evaluation too. New parameters are allowed; draw them from torch's generator."""

    def change(self, model: nn.Module) -> None:
        """Change the built model for training, for example replace modules. Parameters and their names must stay."""

    def act(self, model: nn.Module) -> Acting | None:
        """The object that takes part in training, made after `change`; None if there is none."""
        return None

    @property
    def attached(self) -> Spec | None:
        """The spec to attach to the attention, if any."""
        return None

    @property
    def attached_share(self) -> float:
        """The share of the model's attention, counted from its end, that `attached` is attached to."""
        return 1.0

    @property
    def consistency(self) -> Consistency | None:
        """The consistency loss to train with, if any."""
        return None

    @property
    def label_smoothing(self) -> float | None:
        """The label smoothing in the loss of the task; None for that of the recipe."""
        return None


@dataclass(frozen=True)
class Dropping(Comparator):
    """Base of comparators that drop something with probability p."""

    p: float = 0.1
    grid = [{"p": p} for p in (0.1, 0.05, 0.2, 0.3, 0.4, 0.5)]

    def _check(self) -> None:
        number("p", self.p, 0.0, 1.0)
