"""Strided sparse attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import integer
from ..other_attention import SparseAttention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StridedAttention(SparseAttention):
    """A patch sees patches less than `stride` away and every `stride`-th one; 0 is the root of their number."""

    stride: int = 0
    name = "strided"
    grid = [{"stride": stride} for stride in (0, 2, 3, 5, 6, 8)]
    formula = "S = -inf unless |i - j| < stride or |i - j| mod stride = 0, except for global tokens"
    reference = "Child et al. 2019, Sparse Transformers; here in both directions"

    def _check(self) -> None:
        integer("stride", self.stride, minimum=0)

    def visible(self, tokens: int, prefix: int) -> Tensor:
        """Both patterns together, and the rows and columns of global tokens."""
        import torch

        from ..attention_maps import distances

        apart = distances(tokens, prefix, torch.device("cpu"))
        stride = self.stride or max(math.isqrt(max(tokens - prefix, 1)), 1)
        return (apart < stride) | (apart % stride == 0)
