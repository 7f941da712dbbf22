"""Lightning: a callback that attaches for the time of a fit, and a mixin with the consistency loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..attaching import Choice, Patterns
from ..errors import ArgumentError, AttentionDropWarning
from ..specs import Consistency
from ..torch.attach import attach
from ..torch.attach.attachment import Attachment
from ..torch.consistency.loss import ConsistencyResult, consistency_loss
from ..torch.consistency.views import Mode
from ..torch.dispatch import Backend
from ..validation import number

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
    """Attach when a fit starts and detach when it ends, however it ends; drive schedules and learn rates in between.

    Rates that are learned (`attentiondrop.Learnable`) have an optimiser of their own here: the module's optimisers know
    the module's parameters only. It steps whenever one of them steps, on gradients averaged over all processes. Its
    state and the rates are part of the checkpoints.

    Args:
        spec: as for `attentiondrop.torch.attach`.
        backend: as there.
        submodule: the name of the module to attach to; the whole LightningModule by default.
        learning_rate: of the rates that are learned, by Adam without weight decay.

    Example::

        trainer = Trainer(callbacks=[AttentionDropCallback("hard(p=0.1,k=5)")])
    """

    def __init__(
        self, spec: Choice | Patterns, backend: Backend = "auto", submodule: str = "", learning_rate: float = 0.01
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.submodule = submodule
        self.learning_rate = number("learning_rate", learning_rate, 0.0)
        self.attachment: Attachment | None = None
        self._optimiser: torch.optim.Optimizer | None = None
        self._steps = 0
        #: From a checkpoint that was loaded before the fit started.
        self._loaded: Mapping[str, Any] | None = None
        #: Where the last fit ended, for a checkpoint that is saved afterwards.
        self._last: dict[str, Any] = {}

    @property
    def state_key(self) -> str:
        """Several of these callbacks may share a trainer, each on its own part of the module."""
        patterns = sorted(self.spec) if isinstance(self.spec, Mapping) else ["*"]
        key: str = self._generate_state_key(submodule=self.submodule, patterns=patterns)
        return key

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach: the module is complete and in its place now, and what a checkpoint says of it is known."""
        self.attachment = attach(pl_module.get_submodule(self.submodule), self.spec, self.backend)
        rates = list(self.attachment.parameters())
        self._optimiser = torch.optim.Adam(rates, lr=self.learning_rate) if rates else None
        self._steps = 0
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = None

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Tell the attachment how far training has come."""
        set_progress = getattr(self.attachment, "set_progress", None)
        total = trainer.estimated_stepping_batches
        if set_progress is not None and math.isfinite(total) and total > 0:
            set_progress(min(1.0, trainer.global_step / total))

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Move the learned rates."""
        if self._optimiser is None or self.attachment is None:
            return
        if trainer.world_size > 1:
            for rate in self.attachment.parameters():
                grad = torch.zeros_like(rate) if rate.grad is None else rate.grad
                rate.grad = trainer.strategy.reduce(grad, reduce_op="mean")
        if all(rate.grad is None for rate in self.attachment.parameters()):
            return
        # In half precision the losses, and so these gradients, are scaled.
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            self._optimiser.step()
        else:
            scaler.step(self._optimiser)
        self._optimiser.zero_grad()
        self._steps += 1

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Say so if rates should have been learned and were not."""
        if self._optimiser is not None and self._steps == 0:
            warnings.warn(
                "no rate was learned: there was no optimiser step with a gradient for one in this fit (with manual "
                "optimisation, step the optimisers that self.optimizers() returns)",
                AttentionDropWarning,
                stacklevel=2,
            )

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Detach."""
        self._remove()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Detach."""
        self._remove()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs in order to go on: the rates, and the state of their optimiser."""
        if self.attachment is None:
            return self._last
        optimiser = {} if self._optimiser is None else self._optimiser.state_dict()
        return {"attachment": self.attachment.state_dict(), "optimiser": optimiser}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Lightning calls it before a fit starts, or with some strategies after."""
        if self.attachment is None:
            self._loaded = state_dict
        else:
            self._restore(state_dict)

    def _restore(self, state: Mapping[str, Any]) -> None:
        if self.attachment is not None:
            self.attachment.load_state_dict(state["attachment"])
        if self._optimiser is not None:
            self._optimiser.load_state_dict(state["optimiser"])

    def _remove(self) -> None:
        if self.attachment is not None:
            self._last = self.state_dict()
            self.attachment.remove()
            self.attachment = self._optimiser = None


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
