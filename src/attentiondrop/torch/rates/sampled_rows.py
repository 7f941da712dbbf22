"""Compute a few rows of an attention call once more, with the draws of the call, to measure what happens to attention.

These rows are computed separately from the output, without gradients. The cost is O(rows x M) and does not grow with N.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..call.inputs import repeat_heads
from ..call.leaves import Active, Excerpt
from ..call.one_call import Call
from ..call.visibility import in_window, split


class SampledRows(NamedTuple):
    """Logits [b, H, n, M] of the first b samples and n rows spread over the queries.

    `visible` broadcasts to them, or is None (all visible). `excerpt` tells regularisers which draws belong to them.
    """

    logits: Tensor
    visible: Tensor | None
    excerpt: Excerpt


@torch.no_grad()
def sample_rows(call: Call, samples: int, rows: int | None) -> SampledRows:
    """Compute the logits of `rows` queries (None: all) of the first `samples` samples."""
    inputs, softcap = call.inputs, call.softcap
    shape, dtype = inputs.shape, inputs.compute_dtype
    batch = min(samples, shape.batch)
    count = shape.rows if rows is None else min(rows, shape.rows)
    device = inputs.q.device
    # The middles of `count` equal parts.
    places = (torch.arange(count, device=device) * 2 + 1) * shape.rows // (2 * count)
    q = inputs.q[:batch, :, places].to(dtype)
    k = repeat_heads(inputs.k[:batch].to(dtype), shape.heads)
    logits = (q * inputs.scale) @ k.transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    visible, mask_bias = split(inputs.mask)
    for bias in (inputs.bias, mask_bias):
        if bias is not None:
            logits = logits + _at(bias, batch, places).to(dtype)
    visible = None if visible is None else _at(visible, batch, places)
    if call.visibility.causal:
        past = torch.arange(shape.columns, device=device) <= places[:, None]
        visible = past.view(1, 1, count, -1) if visible is None else visible & past
    keys = torch.arange(shape.columns, device=device)
    if call.visibility.window is not None:
        inside = in_window(call.visibility.window, places, keys)
        visible = inside.view(1, 1, count, -1) if visible is None else visible & inside
    if call.visibility.blocks is not None:
        inside = call.visibility.blocks.visible(places, keys)[:batch]
        visible = inside if visible is None else visible & inside
    return SampledRows(logits, visible, Excerpt(shape, places))


def _at(mask: Tensor, batch: int, rows: Tensor) -> Tensor:
    """The first `batch` samples and the given rows of a mask that broadcasts to [B, H, N, M]."""
    mask = mask[:batch]
    return mask if mask.shape[-2] == 1 else mask[:, :, rows]


def needs_all_rows(leaves: list[Active]) -> bool:
    """Whether rows depend on other rows, so that a few rows cannot be computed alone."""
    return any(leaf.spec.mixes_rows for leaf in leaves)
