"""The masks of models whose attention implementation is ours: for long sliding windows, blocks instead of [N, N].

transformers describes a mask by a function of positions. sdpa gets the whole mask, which at 32,768 tokens takes 1 GiB
for each sample. The same function also tells which blocks are visible, and what is visible in each of the others.

A mask that is only causal is no tensor at all. Some releases of transformers make one of it while a CUDA graph is
recorded or a model is compiled, although it would not depend on any value.

Importing this loads transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)

from ..call.blocks import Blocks, with_patterns

#: From so many tokens on, the mask of a window is made of blocks; below, the whole mask is faster.
LONG = 4096
#: Rows and keys of a block, which suit all kernels.
SIZE = 128


def mask_of(*arguments: Any, **options: Any) -> Tensor | Blocks | None:
    """What `sdpa_mask` returns for the same arguments, or the same visibility in blocks."""
    if not arguments and _is_long_window(**options) and not torch.compiler.is_compiling():
        return _in_blocks(**options)
    if not arguments and _is_only_causal(**options):
        return None
    whole: Tensor | None = sdpa_mask(*arguments, **options)
    return whole


def _is_long_window(
    q_length: Any = None, kv_length: Any = None, local_size: int | None = None, use_vmap: bool = False, **others: Any
) -> bool:
    """Whether blocks are worth it. (Other releases describe a mask by other arguments: they get a whole mask.)"""
    if local_size is None or use_vmap or not isinstance(q_length, int) or q_length != kv_length:
        return False
    return q_length >= LONG and q_length > local_size


def _is_only_causal(
    q_length: Any = None,
    kv_length: Any = None,
    cache_position: Any = None,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> bool:
    """Whether `is_causal=True` says the same. (Older releases give positions, `cache_position`, and no length.)"""
    if q_length is None and cache_position is not None:
        q_length = len(cache_position)
    is_plain = mask_function is causal_mask_function and attention_mask is None and local_size is None
    lengths_are_known = isinstance(q_length, int) and isinstance(kv_length, int)
    return allow_is_causal_skip and is_plain and lengths_are_known and q_length == kv_length


def _in_blocks(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Blocks:
    if attention_mask is not None:
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        mask_function = and_masks(mask_function, padding_mask_function(padding))

    def visible(sample: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return mask_function(sample, head, row + q_offset, key + kv_offset)

    samples = torch.arange(batch_size, device=device)[:, None, None, None]
    keys = torch.arange(kv_length, device=device)
    beyond = -kv_length % SIZE
    partly, wholly = [], []
    for start in range(0, q_length, SIZE):
        rows = torch.arange(start, min(start + SIZE, q_length), device=device)[:, None]
        shown = visible(samples, torch.zeros_like(samples), rows, keys).expand(batch_size, 1, len(rows), kv_length)
        blocks = torch.nn.functional.pad(shown, (0, beyond)).unflatten(-1, (-1, SIZE))
        whole = blocks.all(dim=-1).all(dim=-2)
        wholly.append(whole)
        partly.append(blocks.any(dim=-1).any(dim=-2) & ~whole)
    return with_patterns(torch.stack(partly, -2), torch.stack(wholly, -2), visible, SIZE, q_length, kv_length)
