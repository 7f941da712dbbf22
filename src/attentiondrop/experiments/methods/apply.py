"""Apply a method to a model, and make the loss to train the model with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from ...torch import Attachment, attach, consistency_loss
from ..tasks.interface import Batch, Task, forward
from .parse import Method

Mode = Literal["batch", "sequential", "shared"]
#: From the model and a batch to the mean loss of the batch.
Objective = Callable[[nn.Module, Batch], Tensor]


class Applied:
    """What a method did to a model, what it does while the model is trained, and what it makes of the loss."""

    def __init__(self, method: Method, model: nn.Module) -> None:
        for part in method.comparators:
            part.change(model)
        self.method = method
        self.attachment: Attachment | None = None if method.attached is None else attach(model, method.attached)
        self.acting = {part.name: acting for part in method.comparators if (acting := part.act(model)) is not None}
        #: Whether the rates change as training goes on.
        self.scheduled = self.attachment is not None and bool(self.attachment.rates())
        self._consistency = method.consistency

    def set_progress(self, progress: float) -> None:
        """Move schedules on; without any, this costs nothing."""
        if self.scheduled and self.attachment is not None:
            self.attachment.set_progress(progress)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Tell every acting comparator that an epoch begins."""
        for acting in self.acting.values():
            acting.begin_epoch(epoch, epochs)

    def begin_step(self, progress: float) -> None:
        """Set the schedules, and tell every acting comparator that a step begins."""
        self.set_progress(progress)
        for acting in self.acting.values():
            acting.begin_step(progress)

    def end_step(self) -> None:
        """Tell every acting comparator that the weights have changed."""
        for acting in self.acting.values():
            acting.end_step()

    def batch(self, batch: Batch) -> Batch:
        """The training batch after the method has changed it."""
        for acting in self.acting.values():
            batch = acting.batch(batch)
        return batch

    def objective(self, task: Task, label_smoothing: float, mode: Mode) -> Objective:
        """The training loss: the mean loss of the task, and what the method adds to it."""
        smoothing = self.method.label_smoothing or label_smoothing

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, targets = batch

            def mean(output: Any) -> Tensor:
                total, count = task.loss(output, targets, smoothing)
                return total / count

            if self._consistency is None:
                found = mean(forward(model, inputs))
            else:
                # A weight that is scheduled goes by the progress that the attachment was told.
                spec: Any = self._consistency
                mask = task.mask(targets)
                found = consistency_loss(model, inputs, mean, spec, mode, logits=task.logits, mask=mask).loss
            for acting in self.acting.values():
                found = acting.loss(found)
            return found

        return loss

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: learned and adaptive rates, and the state of comparators."""
        rates = {} if self.attachment is None else self.attachment.state_dict()
        acting = {name: acting.state_dict() for name, acting in self.acting.items()}
        return {**rates, **({_ACTING: acting} if acting else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, acting in self.acting.items():
            acting.load_state_dict(state[_ACTING][name])
        if self.attachment is not None:
            self.attachment.load_state_dict({key: value for key, value in state.items() if key != _ACTING})

    def parameters(self) -> list[nn.Parameter]:
        """The learned rates."""
        return [] if self.attachment is None else list(self.attachment.parameters())


#: In a state: what comparators keep, beside the rates of the attachment.
_ACTING = "comparators"
