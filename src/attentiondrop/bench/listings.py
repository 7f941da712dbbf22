"""The paper's PyTorch listings, as printed. They build all logits, which makes them slow.

The printed ones have no mask. For causal shapes a minimal mask is added: hidden keys are no candidates, are not blurred
into others, and are hidden before the softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def hard_masking(q: Tensor, k: Tensor, v: Tensor, p: float = 0.1, top: int = 5, causal: bool = False) -> Tensor:
    """The listing of variant 1; keys and values have as many heads as the queries."""
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = _hidden(logits) if causal else None
    candidates = logits if hidden is None else logits.masked_fill(hidden, -math.inf)
    values, index = candidates.topk(min(top, logits.shape[-1]), dim=-1)
    kept = (torch.rand_like(values) > p).to(logits.dtype)
    logits = logits * torch.ones_like(logits).scatter(-1, index, kept)
    return F.softmax(logits if hidden is None else logits.masked_fill(hidden, -math.inf), dim=-1) @ v


def blur(q: Tensor, k: Tensor, v: Tensor, sigma_max: float = 0.5, width: int = 5, causal: bool = False) -> Tensor:
    """The listing of variant 2, which blurs both axes."""
    batch, heads, rows, columns = *q.shape[:3], k.shape[2]
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = _hidden(logits) if causal else None
    if hidden is not None:
        logits = logits.masked_fill(hidden, 0.0)
    logits = logits.view(batch * heads, 1, rows, columns)
    x = torch.arange(width, device=q.device) - (width - 1) / 2
    kernel = torch.exp(-0.5 * (x / (torch.rand(1, device=q.device) * sigma_max)) ** 2)
    kernel = (kernel / kernel.sum()).to(q.dtype)
    logits = F.conv2d(logits, kernel.view(1, 1, 1, width), padding=(0, width // 2))
    logits = F.conv2d(logits, kernel.view(1, 1, width, 1), padding=(width // 2, 0))
    logits = logits.view(batch, heads, rows, columns)
    return F.softmax(logits if hidden is None else logits.masked_fill(hidden, -math.inf), dim=-1) @ v


def _hidden(logits: Tensor) -> Tensor:
    return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
