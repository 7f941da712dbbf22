"""EaDRA: a loss on the entropy and the distance of the attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import number
from ..comparator import Acting, Comparator

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class EntropyAndDistance:
    """entropy * the mean entropy of a row + distance * the mean distance at which it attends, over all heads."""

    entropy: float
    distance: float
    prefix: int

    def __call__(self, weights: Tensor) -> Tensor:
        """Of attention weights [batch, heads, queries, keys]."""
        from ..attention_maps import distances, entropy

        apart = distances(weights.shape[-1], self.prefix, weights.device) * weights
        return self.entropy * entropy(weights).mean() + self.distance * apart.sum(-1).mean()


@dataclass(frozen=True)
class EaDRA(Comparator):
    """Penalises attention that is spread out and that looks far: its entropy, and its mean distance in tokens."""

    entropy: float = 0.01
    distance: float = 0.01
    name = "eadra"
    group = "loss"
    grid = [
        {"entropy": entropy, "distance": distance}
        for entropy, distance in ((0.01, 0.01), (0.001, 0.001), (0.1, 0.01), (0.01, 0.1), (0.0, 0.01), (0.01, 0.0))
    ]
    perturbs = "the loss"
    kernel = "as in the model, and a second time in memory"
    formula = "task loss + sum over blocks of entropy * mean H(A_i) + distance * mean over rows of sum_j A_ij |i - j|"
    reference = "Araabi et al. 2024, Entropy- and Distance-Regularized Attention"

    def _check(self) -> None:
        number("entropy", self.entropy, 0.0)
        number("distance", self.distance, 0.0)

    def act(self, model: nn.Module) -> Acting:
        """What watches the attention."""
        from ..attention_maps import PenalisedAttention
        from ..vit_places import prefix_tokens

        measure = EntropyAndDistance(self.entropy, self.distance, prefix_tokens(model))
        return PenalisedAttention(model, self.name, measure)
