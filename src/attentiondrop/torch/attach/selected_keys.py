"""Keys that a model of transformers selects for each row, such as DeepSeek-V3.2: the rest is hidden.

With `sdpa` and `eager`, these models join the selection to their mask. Any other attention function, such as ours, gets
it as indices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import AttachError
from ..call.blocks import Blocks


def with_selection(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | Blocks | None, options: dict[str, Any]
) -> Tensor | Blocks | None:
    """The mask that the model itself makes for `sdpa`. `options`: the other arguments of the attention function."""
    indices, blocks = options.get("indices"), options.get("block_indices")
    if indices is None and blocks is None:
        return mask
    if isinstance(mask, Blocks):
        mask = mask.dense(query.shape[2], key.shape[2])
    if indices is not None:
        mask = _with_keys(module, key, mask, indices)
    return mask if blocks is None else _with_blocks(module, query, key, mask, blocks, options.get("position_ids"))


def _with_keys(module: nn.Module, key: Tensor, mask: Tensor | None, indices: Tensor) -> Tensor:
    """`indices`: [B, N, selected], the same for all heads."""
    if mask is None:
        raise AttachError(
            f"{type(module).__name__} selects keys, but gives no mask. This release of transformers is not known: "
            "remove the attachment"
        )
    left_out = torch.ones(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=indices.device)
    left_out = left_out.scatter(-1, indices.long(), False)[:, None]
    if mask.dtype == torch.bool:
        return mask & ~left_out
    return mask.masked_fill(left_out, torch.finfo(mask.dtype).min)


def _with_blocks(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, blocks: Tensor, positions: Tensor | None
) -> Tensor:
    """The model knows how large its blocks are, and to which heads they belong."""
    if positions is None:
        positions = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=query.device)
    positions = (positions if positions.ndim > 1 else positions[None]).expand(query.shape[0], -1)
    indexer: Any = module.indexer
    joined: Tensor = indexer.build_block_mask(blocks, mask, key.shape[2], query.dtype, query.device, positions)
    return joined
