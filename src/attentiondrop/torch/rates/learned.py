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
        self.start = math.log(share / (1 - share))
        self.raw = nn.Parameter(torch.full(shape, self.start, dtype=dtype, device=like.device))

    def forward(self) -> Tensor:
        """The rate."""
        return self.low + (self.high - self.low) * self.raw.sigmoid()

    def is_at_start(self) -> bool:
        """Whether nothing has changed the parameter so far. This waits for a GPU."""
        return torch.equal(self.raw.detach(), torch.full_like(self.raw, self.start))
