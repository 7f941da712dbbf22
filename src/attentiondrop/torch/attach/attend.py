"""The attention call of a site. The batch may hold several groups, such as views, which never share a draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import warn_once
from ...specs import DropHead, Spec
from ..call.blocks import Blocks
from ..call.inputs import Options
from ..call.leaves import Driven
from ..call.watching import Watcher
from ..draws import draw_seed, group_seed
from ..functional import Attended, perturbed_attention
from .sites import Site


def attend(
    site: Site | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven | None,
    options: Options,
    backend: str,
    monitor: Watcher | None = None,
) -> Attended:
    """Call `perturbed_attention` for a site.

    One call serves all groups of the batch if it can: draws for samples differ anyway, and what is drawn once for a
    call is drawn for each group. Otherwise each group has a call of its own, where group `i` gets the draws of a call
    with the seed `group_seed(seed, i)`.
    """
    if site is not None and drop is not None and not torch.compiler.is_compiling():
        _warn_of_one_head(site, query)
    if site is not None and not site.keeps_dropout:
        options = options._replace(dropout_p=0.0)
    if site is None or drop is None or (site.views == 1 and site.rank is None):
        return perturbed_attention(query, key, value, drop, options, None, backend, monitor=monitor)  # type: ignore[arg-type]
    is_one_call = _is_one_call(site, query, key, value, options)
    if is_one_call and not site.draws and options.dropout_p == 0:
        return perturbed_attention(query, key, value, drop, options, None, backend, monitor=monitor)  # type: ignore[arg-type]
    groups = _groups(site, query)
    seed = draw_seed(query) if site.rank is None else draw_seed(query, rank=site.rank)
    if is_one_call or groups == 1:
        return perturbed_attention(query, key, value, drop, options, None, backend, seed, monitor, groups)  # type: ignore[arg-type]
    return _calls_of_groups(query, key, value, drop, options, backend, monitor, seed, groups)


def _calls_of_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven,
    options: Options,
    backend: str,
    monitor: Watcher | None,
    seed: Tensor,
    groups: int,
) -> Attended:
    """A call for each group."""
    parts = [_split(x, query, groups) for x in (query, key, value, options.attn_mask, options.bias)]
    blocks = _split_blocks(options.blocks, query, groups)
    attended = [
        perturbed_attention(
            q,
            k,
            v,
            drop,
            options._replace(attn_mask=mask, bias=bias, blocks=blocks[group]),
            backend=backend,  # type: ignore[arg-type]
            seed=group_seed(seed, group),
            monitor=monitor,
        )
        for group, (q, k, v, mask, bias) in enumerate(zip(*parts, strict=True))
    ]
    weights = [part.weights for part in attended if part.weights is not None]
    output = torch.cat([part.output for part in attended])
    return Attended(output, torch.cat(weights) if len(weights) == groups else None)


def _is_one_call(site: Site, query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    """Whether one call serves all groups: no tensor lacks the batch of the queries, for it would belong to each group.

    What adapts to the calls of a site (adaptive rates, the importance of heads) has one call for each group. Queries
    without heads may hold them in their first dimension.
    """
    if site.splits_groups or site.adapts or options.blocks is not None or query.dim() < 4:
        return False
    batch = query.shape[0]
    hiding = [x for x in (options.attn_mask, options.bias) if x is not None and x.dim() == query.dim()]
    return key.shape[0] == value.shape[0] == batch and all(x.shape[0] in (1, batch) for x in hiding)


#: The key in `Site.extra` of the spec that `_warn_of_one_head` has looked at.
_LOOKED = "looked at heads"


def _warn_of_one_head(site: Site, query: Tensor) -> None:
    """Warn in the first call with a spec if `DropHead` can drop nothing, since one head is always kept."""
    if site.extra.get(_LOOKED) is site.spec:
        return
    site.extra[_LOOKED] = site.spec
    heads = 1 if query.dim() < 4 else query.shape[-3]
    if heads == 1 and any(isinstance(leaf, DropHead) for leaf in site.spec.leaves()):
        warn_once(
            "one head",
            f"{site.name or 'the model'}: drophead has no effect, because this attention has one head (or folds its "
            f"heads into the batch, as SAM of timm does): its queries have the shape {list(query.shape)}",
        )


def _groups(site: Site, query: Tensor) -> int:
    """How many groups the batch of queries holds: the views of a stack that the call belongs to."""
    if torch.compiler.is_compiling():
        return site.views
    stack = find_stack(site.stacks, site.name, query.device) if site.stacks else None
    if stack is None:
        return 1
    stack.check(site, query)
    views: int = stack.views
    return views


def find_stack(stacks: Sequence[Any], place: Any, device: torch.device) -> Any:
    """The stack that a call belongs to, or None. If several match, it is the one that was entered last."""
    return next((stack for stack in reversed(stacks) if stack.belongs(place, device)), None)


def _split(x: Tensor | None, query: Tensor, groups: int) -> tuple[Tensor | None, ...]:
    """The part of `x` for each group; a tensor without a batch dimension goes to all of them."""
    if x is None or x.dim() != query.dim() or x.shape[0] != query.shape[0]:
        return (x,) * groups
    return x.chunk(groups)


def _split_blocks(blocks: Blocks | None, query: Tensor, groups: int) -> tuple[Blocks | None, ...]:
    """The same for the blocks of keys that rows see."""
    if blocks is None:
        return (None,) * groups
    return tuple([blocks._replace(states=part) for part in _split(blocks.states, query, groups) if part is not None])
