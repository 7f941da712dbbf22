"""Blur and consistency over the last layers."""

from __future__ import annotations

from dataclasses import dataclass

from ....specs import BlurSmoothing, Spec
from ..tail_consistency import TailConsistency, formula_of


@dataclass(frozen=True)
class TailBlur(TailConsistency):
    """Blurs logits in the last share of the attention, and trains two views, which part there, to agree."""

    sigma_max: float = 2.0
    weight: float = 1.0
    name = "tailblur"
    grid = [
        {"share": share, "sigma_max": sigma_max, "weight": weight}
        for share, sigma_max, weight in (
            (0.5, 2.0, 1.0),
            (0.25, 2.0, 1.0),
            (0.5, 1.0, 1.0),
            (0.5, 2.0, 3.0),
            (0.75, 2.0, 1.0),
            (0.25, 2.0, 3.0),
        )
    ]
    formula = formula_of("blur(sigma_max)")

    @property
    def attached(self) -> Spec:
        """What blurs the logits."""
        return BlurSmoothing(sigma_max=self.sigma_max)
