"""Hard masking and consistency over the last layers."""

from __future__ import annotations

from dataclasses import dataclass

from ....specs import HardMasking, Spec
from ..tail_consistency import TailConsistency, formula_of


@dataclass(frozen=True)
class TailHard(TailConsistency):
    """Hides logits in the last share of the attention, and trains two views, which part there, to agree."""

    p: float = 0.5
    k: int = 5
    weight: float = 1.0
    name = "tailhard"
    grid = [
        {"share": share, "p": p, "weight": weight}
        for share, p, weight in (
            (0.5, 0.5, 1.0),
            (0.25, 0.5, 1.0),
            (0.5, 0.2, 1.0),
            (0.5, 0.5, 3.0),
            (0.75, 0.5, 1.0),
            (0.25, 0.5, 3.0),
        )
    ]
    formula = formula_of("hard(p, k, fill=-inf)")

    @property
    def attached(self) -> Spec:
        """What hides the logits."""
        return HardMasking(p=self.p, k=self.k, fill="-inf")
