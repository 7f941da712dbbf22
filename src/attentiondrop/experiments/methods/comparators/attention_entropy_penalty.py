"""A loss on the entropy of the attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import number
from ..comparator import Acting, Comparator

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class EntropyLoss:
    """-weight * the mean entropy of the rows of the attention, averaged over heads first."""

    weight: float

    def __call__(self, weights: Tensor) -> Tensor:
        """Of attention weights [batch, heads, queries, keys]."""
        from ..attention_maps import entropy

        return -self.weight * entropy(weights.mean(1)).mean()


@dataclass(frozen=True)
class AttentionEntropyPenalty(Comparator):
    """Rewards attention of high entropy in every block; a negative weight penalises it."""

    weight: float = 0.01
    name = "attentionentropy"
    group = "loss"
    grid = [{"weight": weight} for weight in (0.01, 0.001, 0.1, 1.0, -0.01, -0.1)]
    perturbs = "the loss"
    kernel = "as in the model, and a second time in memory"
    formula = "task loss - weight * sum over blocks of the mean entropy of the rows of A, averaged over heads"
    reference = "Attanasio et al. 2022, Entropy-based Attention Regularization (EAR)"

    def _check(self) -> None:
        number("weight", self.weight, -math.inf)

    def act(self, model: nn.Module) -> Acting:
        """What watches the attention."""
        from ..attention_maps import PenalisedAttention

        return PenalisedAttention(model, self.name, EntropyLoss(self.weight))
