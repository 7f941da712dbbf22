"""A method applied to a model: built with its rates, changed, attached; and the loss to train it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from ...torch import Attachment, attach, consistency_loss
from .parse import Method

Mode = Literal["batch", "sequential", "shared"]


class Applied:
    """What a method did to a model, and what it makes of the loss."""

    def __init__(self, method: Method, model: nn.Module) -> None:
        for part in method.regularisers:
            part.change(model)
        self.method = method
        self.attachment: Attachment | None = None if method.attached is None else attach(model, method.attached)
        #: Whether the rates change as training goes on.
        self.scheduled = self.attachment is not None and bool(self.attachment.rates())
        self._consistency = method.consistency

    def set_progress(self, progress: float) -> None:
        """Move schedules on; without any, this costs nothing."""
        if self.scheduled and self.attachment is not None:
            self.attachment.set_progress(progress)

    def objective(self, label_smoothing: float, mode: Mode) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
        """The training loss of a batch: `objective(model, images, labels)`."""
        smoothing = self.method.label_smoothing or label_smoothing

        def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            def task(output: Tensor) -> Tensor:
                return F.cross_entropy(output.float(), labels, label_smoothing=smoothing)

            if self._consistency is None:
                return task(model(images))
            # A weight that is scheduled goes by the progress that the attachment was told.
            spec: Any = self._consistency
            return consistency_loss(model, images, task, spec, mode, logits=lambda output: output.float()).loss

        return loss

    def state_dict(self) -> dict[str, Any]:
        """What goes on with a resumed run: learned and adaptive rates."""
        return {} if self.attachment is None else self.attachment.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if self.attachment is not None:
            self.attachment.load_state_dict(state)

    def parameters(self) -> list[nn.Parameter]:
        """Rates that are learned."""
        return [] if self.attachment is None else list(self.attachment.parameters())
