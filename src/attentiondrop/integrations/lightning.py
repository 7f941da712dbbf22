"""Lightning: a callback that attaches for the time of a fit, and a mixin with the consistency loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..attaching import Choice, Patterns
from ..errors import ArgumentError
from ..specs import Consistency
from ..torch.attach import attach
from ..torch.attachment import Attachment
from ..torch.consistency import ConsistencyResult, consistency_loss
from ..torch.functional import Backend
from ..torch.passes import Mode

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback  # the same library under its older name
        except ImportError as error:
            raise ImportError(
                "attentiondrop.integrations.lightning needs Lightning; install it with: "
                'pip install "attentiondrop[lightning]"'
            ) from error


class AttentionDropCallback(Callback):  # type: ignore[misc]
    """Attach when a fit starts and detach when it ends, however it ends; drive schedules in between.

    Args:
        spec: as for `attentiondrop.torch.attach`.
        backend: as there.
        submodule: the name of the module to attach to; the whole LightningModule by default.

    Example::

        trainer = Trainer(callbacks=[AttentionDropCallback("hard(p=0.1,k=5)")])
    """

    def __init__(self, spec: Choice | Patterns, backend: Backend = "auto", submodule: str = "") -> None:
        self.spec = spec
        self.backend = backend
        self.submodule = submodule
        self.attachment: Attachment | None = None

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach."""
        self.attachment = attach(pl_module.get_submodule(self.submodule), self.spec, self.backend)

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Tell the attachment how far training has come."""
        set_progress = getattr(self.attachment, "set_progress", None)
        total = trainer.estimated_stepping_batches
        if set_progress is not None and math.isfinite(total) and total > 0:
            set_progress(min(1.0, trainer.global_step / total))

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Detach."""
        self._remove()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Detach."""
        self._remove()

    def _remove(self) -> None:
        if self.attachment is not None:
            self.attachment.remove()
            self.attachment = None


class ConsistencyMixin:
    """Goes before `LightningModule` among the bases. Its `training_step` has the consistency loss.

    Say what the task is in `task_loss(output, batch)`, and which part of a batch the model takes in
    `model_inputs(batch)`, unless it is the first of a pair, or everything but the labels of a dict. For a training step
    of your own, call `self.consistency_loss(inputs, task_loss)` in it.

    Example::

        class Net(ConsistencyMixin, LightningModule):
            consistency = ad.Consistency(weight=0.5)  # or name it in the attached spec
            consistency_mode = "shared"

            def task_loss(self, output, batch):
                return F.cross_entropy(output, batch[1])
    """

    #: A spec, its text, or None for the one that the attached specs name.
    consistency: Consistency | str | None = None
    #: `"batch"`, `"sequential"` or `"shared"`.
    consistency_mode: Mode = "batch"

    def task_loss(self, output: Any, batch: Any) -> Tensor:
        """The loss of one view."""
        raise NotImplementedError(f"{type(self).__name__} needs a method task_loss(output, batch)")

    def model_inputs(self, batch: Any) -> Any:
        """What `forward` takes of a batch: a tensor, a tuple of positional or a dict of keyword arguments."""
        if isinstance(batch, Mapping):
            return {name: x for name, x in batch.items() if name not in ("label", "labels")}
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[0]
        raise ArgumentError(
            f"batch: expected a dict or a pair of inputs and labels, received {type(batch).__name__}: override "
            "model_inputs"
        )

    def consistency_loss(self, inputs: Any, task_loss: Callable[[Any], Tensor], **options: Any) -> ConsistencyResult:
        """`attentiondrop.torch.consistency_loss` of this module, with its settings."""
        module: Any = self
        return consistency_loss(module, inputs, task_loss, self.consistency, self.consistency_mode, **options)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss, which is logged with its parts."""
        result = self.consistency_loss(self.model_inputs(batch), lambda output: self.task_loss(output, batch))
        module: Any = self
        parts = {"train_loss": result.loss, "train_task": result.task, "train_divergence": result.divergence}
        module.log_dict({name: x.detach() for name, x in parts.items()})
        return result.loss
