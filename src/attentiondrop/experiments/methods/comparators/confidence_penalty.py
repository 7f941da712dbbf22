"""Confidence penalty: predictions of low entropy cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import number
from ..comparator import Acting, Comparator, Pass

if TYPE_CHECKING:
    from torch import Tensor, nn


class PenalisedConfidence(Acting):
    """Subtracts the mean entropy of the predictions, times a weight, from the loss of each pass."""

    on_tensors = ("task_loss",)

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def task_loss(self, loss: Tensor, made: Pass) -> Tensor:
        """The loss with the penalty, a mean over the positions that count."""
        log = made.logits.log_softmax(-1)
        return loss + self.weight * made.mean((log.exp() * log).sum(-1))


@dataclass(frozen=True)
class ConfidencePenalty(Comparator):
    """Subtracts the entropy of the predictions from the loss, so that confident ones cost more."""

    weight: float = 0.1
    name = "confidencepenalty"
    group = "loss"
    grid = [{"weight": weight} for weight in (0.1, 0.05, 0.3, 0.5, 1.0, 2.0)]
    perturbs = "the loss"
    formula = "task loss - weight * H(prediction)"
    reference = "Pereyra et al. 2017, Regularizing Neural Networks by Penalizing Confident Output Distributions"

    def _check(self) -> None:
        number("weight", self.weight, 0.0)

    def act(self, model: nn.Module) -> Acting:
        """What changes the loss."""
        return PenalisedConfidence(self.weight)
