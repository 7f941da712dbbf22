"""Talking-Heads attention: heads are mixed before and after the softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import number
from ..other_attention import OtherAttention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TalkingHeads(OtherAttention):
    """Mixes the logits of all heads, and then their weights, by learned matrices that begin near the identity."""

    #: What all other entries of the matrices begin with.
    mix: float = 0.0
    name = "talkingheads"
    grid = [{"mix": mix} for mix in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)]
    formula = "A = P_w softmax(P_l S), with P_l and P_w [heads, heads]"
    reference = "Shazeer et al. 2020, Talking-Heads Attention"

    def _check(self) -> None:
        number("mix", self.mix, -1.0, 1.0)

    def learned(self, heads: int) -> dict[str, Tensor]:
        """Both matrices."""
        import torch

        first = torch.eye(heads) * (1 - self.mix) + self.mix
        return {"before": first, "after": first.clone()}

    def weigh(self, logits: Tensor, learned: Mapping[str, Tensor], prefix: int) -> Tensor:
        """Mix, softmax, mix."""
        mixed = (learned["before"].float() @ logits.flatten(2)).view_as(logits).softmax(-1)
        return (learned["after"].float() @ mixed.flatten(2)).view_as(logits)
