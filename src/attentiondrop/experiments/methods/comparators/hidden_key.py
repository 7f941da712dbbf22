"""HiddenKey: dropped key columns, dropout of hidden states, and a consistency loss."""

from __future__ import annotations

from dataclasses import dataclass

from ....specs import Consistency, DropKey, Spec, r_drop
from ....validation import number
from ..comparator import Comparator


@dataclass(frozen=True)
class HiddenKey(Comparator):
    """Drops key columns of the attention and elements of hidden states, and trains two such passes to agree."""

    key: float = 0.1
    p: float = 0.1
    weight: float = 1.0
    name = "hiddenkey"
    group = "loss"
    grid = [
        {"key": key, "p": p, "weight": weight}
        for key, p, weight in (
            (0.1, 0.1, 1.0),
            (0.05, 0.05, 1.0),
            (0.2, 0.1, 1.0),
            (0.2, 0.2, 1.0),
            (0.1, 0.1, 0.3),
            (0.1, 0.1, 3.0),
        )
    ]
    perturbs = "logits, activations, and the loss"
    formula = "dropkey(p=key, by=column) + dropout(p) + weight * (KL(P1 | P2) + KL(P2 | P1)) / 2"
    reference = "Wang et al. 2024, LoRA Meets Dropout under a Unified Framework"

    def _check(self) -> None:
        number("key", self.key, 0.0, 1.0)
        number("p", self.p, 0.0, 1.0)
        number("weight", self.weight, 0.0)

    def model_rates(self) -> dict[str, float]:
        """The dropout of hidden states."""
        return {"dropout": self.p}

    @property
    def attached(self) -> Spec:
        """The key columns to drop."""
        return DropKey(p=self.key, by="column")

    @property
    def consistency(self) -> Consistency:
        """The KL in both directions; the task loss is averaged over both passes."""
        return r_drop(self.weight)
