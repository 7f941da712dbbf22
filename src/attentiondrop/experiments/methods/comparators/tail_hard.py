"""Hard masking and consistency over the last layers alone: the views share the layers before, which run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....errors import bad_argument
from ....specs import Consistency, HardMasking, Spec, r_drop
from ....validation import number
from ..comparator import Comparator


@dataclass(frozen=True)
class TailHard(Comparator):
    """Hides logits in the last share of the attention, and trains two views, which part there, to agree."""

    share: float = 0.5
    p: float = 0.5
    k: int = 5
    weight: float = 1.0
    name = "tailhard"
    group = "loss"
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
    perturbs = "logits of the last layers, and the loss"
    formula = (
        "hard(p, k, fill=-inf) in the last share of the layers; mean of both task losses + weight * "
        "(KL(P1 | P2) + KL(P2 | P1)) / 2; the layers before them run once, so a step costs 1 + share passes"
    )
    reference = "AttentionDrop; Liang et al. 2021, R-Drop"

    def __post_init__(self) -> None:
        if not number("share", self.share, 0.0, 1.0) > 0:
            raise bad_argument("share", "a number in (0, 1]", self.share)
        number("weight", self.weight, 0.0)
        _ = self.attached  # refuses a wrong p or k

    def training(self, settings: Any) -> dict[str, Any]:
        """The views share what comes before the first attached layer."""
        return {"consistency_mode": "shared"}

    @property
    def attached(self) -> Spec:
        """What hides the logits."""
        return HardMasking(p=self.p, k=self.k, fill="-inf")

    @property
    def attached_share(self) -> float:
        """The last layers."""
        return self.share

    @property
    def consistency(self) -> Consistency:
        """That of R-Drop: the KL in both directions; the task loss is averaged over both passes."""
        return r_drop(self.weight)
