"""Consistency with a teacher whose weights are an average of those of the model."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....validation import number
from ...tasks.interface import forward
from ..comparator import Acting, Comparator, Pass

if TYPE_CHECKING:
    from torch import Tensor, nn

#: The share of training in which the weight of the loss rises to its value.
_RISE = 0.2


class Teacher(Acting):
    """A copy of the model in evaluation mode, whose weights follow those of the model after every step."""

    on_tensors = ("begin_step", "task_loss", "end_step")

    def __init__(self, model: nn.Module, weight: float, decay: float) -> None:
        import torch

        self.model, self.weight, self.decay = model, weight, decay
        self.teacher = copy.deepcopy(model).requires_grad_(False).eval()
        device = next(model.parameters()).device
        self._now = torch.zeros((), device=device)
        self._steps = torch.zeros((), device=device)

    def begin_step(self, progress: float) -> None:
        """Set the weight of the loss, which rises at first, when the teacher knows nothing."""
        share = min(progress / _RISE, 1.0)
        self._now.fill_(self.weight * math.exp(-5 * (1 - share) ** 2))

    def task_loss(self, loss: Tensor, made: Pass) -> Tensor:
        """The loss, and the divergence of the prediction from that of the teacher."""
        import torch

        with torch.no_grad():
            wanted = made.read(forward(self.teacher, made.inputs)).log_softmax(-1)
        apart = (wanted.exp() * (wanted - made.logits.log_softmax(-1))).sum(-1)
        found: Tensor = loss + self._now * made.mean(apart)
        return found

    def end_step(self) -> None:
        """Move the teacher towards the model; the first steps count as in a plain mean."""
        import torch

        with torch.no_grad():
            self._steps += 1
            share = (1 / (self._steps + 1)).clamp_min(1 - self.decay)
            for own, new in zip(self._tensors(self.teacher), self._tensors(self.model), strict=True):
                own.lerp_(new, share.to(own.dtype)) if own.is_floating_point() else own.copy_(new)

    def state_dict(self) -> dict[str, Any]:
        """The weights of the teacher, and how many steps it has seen."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.teacher.state_dict().items()}
        return {"teacher": tensors, "steps": self._steps.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.teacher.load_state_dict(state["teacher"])
        self._steps.copy_(state["steps"])

    @staticmethod
    def _tensors(module: nn.Module) -> list[Tensor]:
        return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]


@dataclass(frozen=True)
class EMATeacher(Comparator):
    """Trains the model to agree with a moving average of itself, the teacher, which sees no perturbation."""

    weight: float = 1.0
    decay: float = 0.999
    name = "emateacher"
    group = "loss"
    grid = [
        {"weight": weight, "decay": decay}
        for weight, decay in ((1.0, 0.999), (0.3, 0.999), (3.0, 0.999), (1.0, 0.99), (3.0, 0.99), (10.0, 0.99))
    ]
    perturbs = "the loss"
    formula = "task loss + weight * KL(teacher | model), teacher = moving average of the model with this decay"
    reference = "Tarvainen and Valpola 2017, Mean Teacher; with KL as in DOCR (double consistency, Electronics 2023)"

    def _check(self) -> None:
        number("weight", self.weight, 0.0)
        number("decay", self.decay, 0.0, 1.0)

    def act(self, model: nn.Module) -> Acting:
        """The teacher."""
        return Teacher(model, self.weight, self.decay)
