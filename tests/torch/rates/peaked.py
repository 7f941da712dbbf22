"""A model whose heads look at one key each: its attention has room for more entropy."""

from __future__ import annotations

import torch
from torch import nn


class Peaked(nn.Module):
    """Two heads that look at one key each, one of them harder than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        with torch.no_grad():
            weight = torch.eye(16).repeat(3, 1)
            weight[:8] *= 3.0
            weight[8:16] *= 2.6
            self.attention.in_proj_weight.copy_(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output
