"""Attention within a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....validation import integer
from ..other_attention import SparseAttention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SlidingWindow(SparseAttention):
    """A patch sees patches at most `radius` away in the sequence. Tokens such as the class token see and are seen."""

    radius: int = 4
    name = "window"
    grid = [{"radius": radius} for radius in (4, 1, 2, 3, 6, 8)]
    formula = "S = -inf if |i - j| > radius, except for global tokens"
    reference = "Beltagy et al. 2020, Longformer"

    def _check(self) -> None:
        integer("radius", self.radius, minimum=0)

    def visible(self, tokens: int, prefix: int) -> Tensor:
        """The band around the diagonal, and the rows and columns of global tokens."""
        import torch

        from ..attention_maps import distances

        return distances(tokens, prefix, torch.device("cpu")) <= self.radius
