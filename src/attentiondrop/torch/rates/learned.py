"""Rates that are learned: a parameter without limits, and the value within limits that it stands for."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...adaptive import Learnable

#: Of the relaxed Bernoulli: lower is closer to a step and noisier.
TEMPERATURE = 0.5


class LearnedRate(nn.Module):
    """`low + (high - low) * sigmoid(raw)`."""

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


def relaxed_below(uniform: Tensor, p: Tensor) -> Tensor:
    """`uniform < p` as 0 and 1, with the gradient for `p` of a relaxed Bernoulli (straight through)."""
    odds = torch.logit(p.clamp(1e-6, 1 - 1e-6)) - torch.logit(uniform.to(p.dtype).clamp(1e-6, 1 - 1e-6))
    soft = torch.sigmoid(odds / TEMPERATURE)
    return (uniform < p).to(p.dtype) + soft - soft.detach()
