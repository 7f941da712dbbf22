"""Where queries of five dimensions have their heads.

Windows are such a dimension. SDPA takes any order, since it treats windows and heads alike. Twins gives it
[B, windows, heads, N, D], which is what `attention` expects, but Hiera and NesT of timm give [B, heads, windows, N, D].
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .exchange_class import own_class
from .sites import Site

#: The keys in `Site.extra`: how many heads the module says it has, and whether its class is one of those below.
HEADS, KNOWN = "heads", "heads come first"

#: Modules of timm that put heads before windows. Their shapes do not tell where there are as many windows as heads.
_HEADS_FIRST = {("timm.models.hiera", "MaskUnitAttention"), ("timm.models.nest", "Attention")}


def remember_heads(module: nn.Module) -> dict[str, Any]:
    """What a site must know of its module."""
    cls = own_class(type(module))
    numbers = (getattr(module, name, None) for name in ("num_heads", "heads"))
    heads = next((number for number in numbers if isinstance(number, int)), None)
    # (A subclass is known, too.)
    return {HEADS: heads, KNOWN: any((base.__module__, base.__name__) in _HEADS_FIRST for base in cls.__mro__)}


def has_heads_first(site: Site, query: Tensor) -> bool:
    """Whether queries are [B, heads, windows, N, D]."""
    heads = site.extra.get(HEADS)
    if query.dim() != 5 or heads is None or query.shape[1] != heads:
        return False
    return query.shape[2] != heads or bool(site.extra.get(KNOWN))


def heads_last(x: Tensor) -> Tensor:
    """[B, windows, heads, N, D] of [B, heads, windows, N, D], and the other way round. Masks may lack dimensions."""
    return x[(None,) * (5 - x.dim())].transpose(1, 2)
