"""Attention to the k largest logits of a row alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import integer
from ..other_attention import OtherAttention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TopKAttention(OtherAttention):
    """Every query attends to its k largest logits alone (and to others that equal the smallest of them)."""

    k: int = 8
    name = "topk"
    grid = [{"k": k} for k in (8, 2, 4, 6, 10, 12)]
    formula = "A = softmax(S where S >= the k-th largest of its row, else -inf)"
    reference = "Zhao et al. 2019, Explicit Sparse Transformer"

    def _check(self) -> None:
        integer("k", self.k, minimum=1)

    def weigh(self, logits: Tensor, learned: Mapping[str, Tensor], prefix: int) -> Tensor:
        """A softmax over the largest ones."""
        smallest = logits.topk(min(self.k, logits.shape[-1]), dim=-1).values[..., -1:]
        return logits.masked_fill(logits < smallest, float("-inf")).softmax(-1)
