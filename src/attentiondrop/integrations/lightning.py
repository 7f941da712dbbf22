"""Lightning: a callback that attaches during a fit, and a mixin with the consistency loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..attaching import Choice, Patterns
from ..errors import ArgumentError, AttentionDropWarning, warn_outside
from ..specs import Consistency
from ..torch.attach import attach
from ..torch.attach.attachment import Attachment
from ..torch.consistency.loss import ConsistencyResult, consistency_loss
from ..torch.consistency.views import Mode
from ..torch.dispatch import Backend
from ..torch.rates.scheduled import changing_rates
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
    """Attach when a fit starts and detach when it ends, also after an error. During the fit, set and learn rates.

    Learned rates (`attentiondrop.Learnable`) have their own optimiser here, since the optimisers of the module know
    only the parameters of the module. It steps whenever one of those steps, with gradients averaged over all processes.
    The checkpoints contain its state and the rates.

    Args:
        spec: as for `attentiondrop.torch.attach`.
        backend: as there.
        submodule: the name of the module to attach to; the whole LightningModule by default.
        learning_rate: of the learned rates; their optimiser is Adam without weight decay.

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
        #: The state from a checkpoint that was loaded before the fit started.
        self._loaded: Mapping[str, Any] | None = None
        #: The state at the end of the last fit, for a checkpoint that is saved afterwards.
        self._last: dict[str, Any] = {}

    @property
    def state_key(self) -> str:
        """The key in checkpoints. It names the part of the module, since a trainer may have several such callbacks."""
        patterns = sorted(self.spec) if isinstance(self.spec, Mapping) else ["*"]
        key: str = self._generate_state_key(submodule=self.submodule, patterns=patterns)
        return key

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach. By now the module is complete and on its device, and a checkpoint has been loaded."""
        self.attachment = attach(pl_module.get_submodule(self.submodule), self.spec, self.backend)
        rates = list(self.attachment.parameters())
        self._optimiser = torch.optim.Adam(rates, lr=self.learning_rate) if rates else None
        self._steps = 0
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = None

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Warn if there are schedules that cannot follow the progress."""
        if self.attachment is not None and _progress(trainer) is None and _has_schedule(self.attachment):
            warn_outside(
                "AttentionDropCallback: the length of this fit is unknown, so its progress is, too, and the schedules "
                "of the spec stay where they are: set max_epochs or max_steps (max_steps, or limit_train_batches as a "
                "number, for data without a length)",
                "lightning",
                "pytorch_lightning",
            )
            self.attachment.set_progress(self.attachment.progress)  # one warning is enough

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Tell the attachment how much of the training is done."""
        progress = _progress(trainer, batch_idx)
        if self.attachment is not None and progress is not None:
            self.attachment.set_progress(progress)

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Move the learned rates."""
        if self._optimiser is None or self.attachment is None:
            return
        self.attachment.average_gradients()
        if all(rate.grad is None for rate in self.attachment.parameters()):
            return
        # In half precision the loss is scaled, so these gradients are, too.
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            self._optimiser.step()
        else:
            scaler.step(self._optimiser)
        self._optimiser.zero_grad()
        self._steps += 1

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Warn if rates should have been learned and were not."""
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
        """The state for a checkpoint: the rates, and the state of their optimiser."""
        if self.attachment is None:
            return self._last
        optimiser = {} if self._optimiser is None else self._optimiser.state_dict()
        return {"attachment": self.attachment.state_dict(), "optimiser": optimiser}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Lightning calls it before a fit starts, with some strategies after."""
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


def _progress(trainer: Any, batch: int = 0) -> float | None:
    """The share of the fit that is done before this batch of the epoch; None if the length of the fit is unknown."""
    # With manual optimisation, `global_step` counts the steps of all optimisers, and so does `max_steps`.
    ends = [(trainer.global_step, trainer.max_steps)]
    batches, every = trainer.num_training_batches, trainer.accumulate_grad_batches
    if math.isfinite(batches):
        # Each epoch is an equal share, whatever number of steps it has: `GradientAccumulationScheduler` changes that
        # from epoch to epoch. Within an epoch, the batches of one step have the same progress.
        steps = math.ceil(batches / every)
        ends.append((trainer.current_epoch * steps + batch // every, trainer.max_epochs * steps))
    # The fit ends where the first of the two ends.
    # Lightning writes "no limit" as -1 or as infinity.
    shares = [min(1.0, done / total) for done, total in ends if math.isfinite(total) and total > 0]
    return max(shares, default=None)


def _has_schedule(attachment: Attachment) -> bool:
    """Whether a rate changes with the progress. Rates over layers or heads and adaptive rates do not."""
    return any(changing_rates(site.spec, *site.layer) for site in attachment.sites)


#: A batch or two may be special.
_PATIENCE = 3


class ConsistencyMixin:
    """A base class to put before `LightningModule`. Its `training_step` uses the consistency loss.

    Define `task_loss(output, batch)` and no `training_step`: yours would replace the one here. If you need your own,
    call `self.consistency_loss(inputs, task_loss)` in it. Override `model_inputs(batch)`, unless the inputs of the
    model are the first of a pair, or all entries of a dict but the labels.

    Example::

        class Net(ConsistencyMixin, LightningModule):
            consistency = ad.Consistency(weight=0.5)  # or name it in the attached spec
            consistency_mode = "shared"

            def task_loss(self, output, batch):
                return F.cross_entropy(output, batch[1])
    """

    #: A spec, its text, its weight alone, or None for the one in the attached specs.
    consistency: Consistency | str | float | None = None
    #: `"batch"`, `"sequential"` or `"shared"`.
    consistency_mode: Mode = "batch"
    #: Batches that may still come without `consistency_loss`, before a warning; None: it was called.
    _batches_without: int | None = _PATIENCE

    def task_loss(self, output: Any, batch: Any) -> Tensor:
        """The loss of one view."""
        raise NotImplementedError(f"{type(self).__name__} needs a method task_loss(output, batch)")

    def model_inputs(self, batch: Any) -> Any:
        """The inputs of `forward` in a batch: a tensor, a tuple of positional or a dict of keyword arguments."""
        if isinstance(batch, Mapping):
            return {name: x for name, x in batch.items() if name not in ("label", "labels")}
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[0]
        raise ArgumentError(
            f"batch: expected a dict or a pair of inputs and labels, received {type(batch).__name__}: override "
            "model_inputs"
        )

    def consistency_loss(self, inputs: Any, task_loss: Callable[[Any], Tensor], **options: Any) -> ConsistencyResult:
        """Call `attentiondrop.torch.consistency_loss` with this module and its settings."""
        self._batches_without = None
        module: Any = self
        return consistency_loss(module, inputs, task_loss, self.consistency, self.consistency_mode, **options)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Warn if the settings of the class have no effect, because its own training step does not use them."""
        parent: Any = super()
        parent.on_train_batch_end(*args, **kwargs)
        if self._batches_without is None or self.consistency is None:
            return
        self._batches_without -= 1
        if self._batches_without < 0:
            self._batches_without = None
            name = type(self).__name__
            warn_outside(
                f"training_step of {name} replaces that of ConsistencyMixin and has not called self.consistency_loss "
                f"in {_PATIENCE + 1} batches, so the setting `consistency` of {name} has no effect: remove "
                "training_step and write task_loss(output, batch), or call self.consistency_loss(inputs, task_loss)",
                "lightning",
                "pytorch_lightning",
            )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute the loss, and log it with its parts."""
        result = self.consistency_loss(self.model_inputs(batch), lambda output: self.task_loss(output, batch))
        module: Any = self
        parts = {"train_loss": result.loss, "train_task": result.task, "train_divergence": result.divergence}
        module.log_dict({name: x.detach() for name, x in parts.items()})
        return result.loss
