"""Masks of `torch.nn.attention.bias`: tensors without values, which SDPA knows by their class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, ShapeError
from .inputs import Options


def without_causal_bias(options: Options, query: Tensor, key: Tensor) -> Options:
    """The same options with `is_causal`, or with a plain mask, instead of a `CausalBias`, as SDPA reads it.

    >>> from torch.nn.attention.bias import causal_upper_left
    >>> x = torch.randn(2, 5, 8)
    >>> found = without_causal_bias(Options(causal_upper_left(5, 5)), x, x)
    >>> found.attn_mask is None, found.is_causal
    (True, True)
    """
    mask: Any = options.attn_mask
    # By its name: importing the class would load the compiler.
    if mask is None or type(mask) is Tensor or type(mask).__name__ != "CausalBias":
        return options
    if options.is_causal:
        raise ArgumentError("is_causal: expected False where attn_mask is given, as in scaled_dot_product_attention")
    if mask.variant.name == "UPPER_LEFT" or mask.seq_len_q == mask.seq_len_kv:
        return options._replace(attn_mask=None, is_causal=True)
    # Only here SDPA reads how many rows and keys the mask is for.
    lengths, received = [query.shape[-2], key.shape[-2]], [mask.seq_len_q, mask.seq_len_kv]
    if received != lengths:
        raise ShapeError(f"attn_mask: expected a CausalBias of {lengths} rows and keys, received one of {received}")
    past = torch.ones(*lengths, dtype=torch.bool, device=query.device).tril(lengths[1] - lengths[0])
    return options._replace(attn_mask=past)
