"""A perturbation and a consistency loss over the last layers: the views share the layers before, which run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import bad_argument
from ...specs import Consistency, r_drop
from ...validation import number
from .comparator import Comparator


@dataclass(frozen=True)
class TailConsistency(Comparator):
    """Base of these methods. A subclass has a field `weight`, and says by `attached` what perturbs the last layers."""

    share: float = 0.5
    group = "loss"
    perturbs = "logits of the last layers, and the loss"
    reference = "AttentionDrop; Liang et al. 2021, R-Drop"
    replaces = ("consistency_mode",)

    def _check(self) -> None:
        if not number("share", self.share, 0.0, 1.0) > 0:
            raise bad_argument("share", "a number in (0, 1]", self.share)
        _ = self.consistency, self.attached  # refuse a wrong weight, or a wrong rate

    def training(self, settings: Any) -> dict[str, Any]:
        """The views share what comes before the first attached layer."""
        return {"consistency_mode": "shared"}

    @property
    def attached_share(self) -> float:
        """The last layers."""
        return self.share

    @property
    def consistency(self) -> Consistency:
        """That of R-Drop: the KL in both directions; the task loss is averaged over both passes."""
        return r_drop(self.weight)  # type: ignore[attr-defined]


def formula_of(perturbation: str) -> str:
    """What such a method computes, in one line."""
    return (
        f"{perturbation} in the last share of the layers; mean of both task losses + weight * "
        "(KL(P1 | P2) + KL(P2 | P1)) / 2; the layers before them run once, so a step costs 1 + share passes"
    )
