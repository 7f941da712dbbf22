# mypy: ignore-errors
"""The uniforms of samples or heads in one launch: Triton. As operations of torch, the hash takes about a hundred."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compiler_options import OPTIONS
from .current_device import on_device
from .hashing import stream_key, to_uniform, vector_word

_BLOCK = 128


# Neither a stream nor a number of samples is worth a compilation of its own.
@triton.jit(do_not_specialize=["stream", "length"])
def uniforms_kernel(seed, out, stream, length, BLOCK: tl.constexpr):
    """Write a block of uniforms."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k0, k1 = stream_key(seed, stream)
    tl.store(out + place, to_uniform(vector_word(k0, k1, place)), mask=place < length)


def uniform_vector(seed: Tensor, stream: int, length: int) -> Tensor:
    """`Stream(seed, stream).uniform_vector(length)`, with the same bits."""
    out = torch.empty(length, dtype=torch.float32, device=seed.device)
    if length > 0:
        with on_device(seed):
            uniforms_kernel[(triton.cdiv(length, _BLOCK),)](
                seed, out, stream, length, BLOCK=_BLOCK, num_warps=1, **OPTIONS
            )
    return out
