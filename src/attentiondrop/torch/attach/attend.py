"""Attention over stacked views: each view is attended on its own, with draws of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from ...specs import Spec
from ..call.leaves import Driven
from ..consistency.stacked_batch import views_at
from ..draws import draw_seed, view_seed
from ..functional import Attended, Options, perturbed_attention
from ..rates.monitoring import Monitor
from .sites import Site


def attend(
    site: Site | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven | None,
    options: Options,
    backend: str,
    monitor: Monitor | None = None,
) -> Attended:
    """`perturbed_attention` for a site, in as many parts as there are views in the batch.

    Parts, not one call over all views: what is drawn once in a call (the sigma of a blur, the choice of `OneOf`) must
    differ between views, and view `i` has exactly the draws of a separate pass whose seed here is `view_seed(seed, i)`.
    """
    views = 1 if site is None or drop is None else _views(site, query)
    if site is None or drop is None or (views == 1 and site.rank is None):
        return perturbed_attention(query, key, value, drop, options, None, backend, monitor=monitor)  # type: ignore[arg-type]
    seed = draw_seed(query) if site.rank is None else draw_seed(query, rank=site.rank)
    parts = [_split(x, query, views) for x in (query, key, value, options.attn_mask, options.bias)]
    attended = [
        perturbed_attention(
            q,
            k,
            v,
            drop,
            options._replace(attn_mask=mask, bias=bias),
            backend=backend,  # type: ignore[arg-type]
            seed=view_seed(seed, view),
            monitor=monitor,
        )
        for view, (q, k, v, mask, bias) in enumerate(zip(*parts, strict=True))
    ]
    weights = [part.weights for part in attended if part.weights is not None]
    output = torch.cat([part.output for part in attended])
    return Attended(output, torch.cat(weights) if len(weights) == views else None)


def _views(site: Site, query: Tensor) -> int:
    return site.views if torch.compiler.is_compiling() else views_at(site, query)


def _split(x: Tensor | None, query: Tensor, views: int) -> tuple[Tensor | None, ...]:
    """The part of each view; what has no batch of its own goes to all of them."""
    if x is None or x.dim() != query.dim() or x.shape[0] != query.shape[0]:
        return (x,) * views
    return x.chunk(views)
