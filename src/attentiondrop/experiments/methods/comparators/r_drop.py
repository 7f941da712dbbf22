"""R-Drop: two passes with dropout, trained to agree."""

from __future__ import annotations

from dataclasses import dataclass

from ....specs import Consistency, r_drop
from ....validation import number
from ..comparator import Comparator


@dataclass(frozen=True)
class RDrop(Comparator):
    """R-Drop: dropout of activations, two passes, symmetric KL, the task loss averaged over both."""

    weight: float = 1.0
    p: float = 0.1
    name = "r-drop"
    group = "loss"
    # The authors' code for ViT adds 0.3 * (KL + KL) to the sum of both task losses. Half of that is our 0.3.
    grid = [
        {"weight": weight, "p": p}
        for weight, p in ((0.3, 0.1), (1.0, 0.1), (0.6, 0.1), (3.0, 0.1), (1.0, 0.3), (5.0, 0.3))
    ]
    perturbs = "activations, and the loss"
    formula = "mean of both task losses + weight * (KL(P1 | P2) + KL(P2 | P1)) / 2, with dropout(p)"
    reference = "Liang et al. 2021, R-Drop"

    def _check(self) -> None:
        number("weight", self.weight, 0.0)
        number("p", self.p, 0.0, 1.0)

    def model_rates(self) -> dict[str, float]:
        """The dropout that makes the two passes differ."""
        return {"dropout": self.p}

    @property
    def consistency(self) -> Consistency:
        """Symmetric KL; the task loss is averaged over both passes."""
        return r_drop(self.weight)
