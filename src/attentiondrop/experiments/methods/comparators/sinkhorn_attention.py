"""Doubly stochastic attention by Sinkhorn's algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import integer
from ..other_attention import OtherAttention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SinkhornAttention(OtherAttention):
    """Normalises rows and columns of exp(S) in turns, rows first. One iteration is the softmax."""

    iterations: int = 3
    name = "sinkhorn"
    grid = [{"iterations": iterations} for iterations in (3, 1, 5, 7, 11, 21)]
    formula = "A = exp(S), then rows and columns are divided by their sums alternately"
    reference = "Sander et al. 2022, Sinkformers"

    def _check(self) -> None:
        integer("iterations", self.iterations, minimum=1)

    def weigh(self, logits: Tensor, learned: Mapping[str, Tensor], prefix: int) -> Tensor:
        """In logarithms, where nothing overflows."""
        for turn in range(self.iterations):
            logits = logits.log_softmax(-1 if turn % 2 == 0 else -2)
        return logits.exp()
