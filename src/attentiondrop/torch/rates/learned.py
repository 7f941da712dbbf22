"""Learned rates: the parameter has no limits, the rate computed from it stays within limits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...adaptive import Learnable


class LearnedRate(nn.Module):
    """The rate is `low + (high - low) * sigmoid(raw)`; `raw` is the parameter."""

    def __init__(self, rule: Learnable, like: Tensor) -> None:
        super().__init__()
        self.low, self.high = rule.low, rule.high
        share = (rule.init - rule.low) / (rule.high - rule.low)
        shape = () if rule.heads is None else (rule.heads,)
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        start = torch.full(shape, math.log(share / (1 - share)), dtype=dtype, device=like.device)
        self.raw = nn.Parameter(start)

    def forward(self) -> Tensor:
        """The rate."""
        return self.low + (self.high - self.low) * self.raw.sigmoid()
