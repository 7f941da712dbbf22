"""Random masks in the form that SDPA takes: [batch, heads or 1, queries or 1, keys], True: visible, or additive."""

from __future__ import annotations

import torch
from torch import Tensor

#: By name; "causal" is a flag, not a tensor.
MASKS = ("none", "causal", "keys", "pairs", "blind rows", "additive", "additive -inf", "blind sample")
#: What hides the same keys from all rows of a sample, or none: a blur may act along the queries.
ALIKE = ("none", "keys", "additive", "blind sample")


def make_mask(kind: str, batch: int, heads: int, queries: int, keys: int, g: torch.Generator) -> Tensor | None:
    """A mask of this kind, in float64 if it is additive."""
    padding = torch.rand(batch, 1, 1, keys, generator=g) < 0.7
    padding[..., 0] = True
    pairs = torch.rand(batch, 1, queries, keys, generator=g) < 0.6
    pairs[..., 0] = True
    shift = torch.randn(1, heads, queries, keys, generator=g, dtype=torch.float64)
    if kind == "keys":
        return padding
    if kind == "blind sample":
        padding[-1] = False
        return padding
    if kind == "pairs":
        return pairs
    if kind == "blind rows":
        pairs[:, :, queries // 2] = False
        return pairs
    if kind == "additive":
        return shift
    if kind == "additive -inf":
        return shift.masked_fill(~pairs, -torch.inf)
    return None
