"""The largest logits of rows on any device, with ties decided."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import regularisers


def largest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest logits of each row, `k` below their number, and their keys; ties go to the lower key."""
    # One more than asked for, to see whether the k-th largest is tied with the next.
    values, indices = _some_largest(logits, k + 1)
    tied = (values[..., k - 1] == values[..., k]).logical_and_(values[..., k] > -torch.inf)
    values, indices = values[..., :k], indices[..., :k]
    if bool(tied.any()):
        # The values are right, but torch.topk returns any of the keys with equal logits.
        indices[tied] = regularisers.top_k(logits[tied], None, k).to(torch.uint8).topk(k, dim=-1).indices
        values = logits.gather(-1, indices)
    return values, indices


def _some_largest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same as `torch.topk`. Where that is faster, it first compares the largest logits of chunks of keys."""
    columns = logits.shape[-1]
    # torch.topk partitions the whole row, unless k is below columns / 64: then it uses a heap.
    if logits.device.type != "cpu" or not 12 * k <= columns < 64 * k:
        return logits.topk(k, dim=-1)
    length = round(math.sqrt(columns / k))
    chunks = columns // length
    whole = chunks * length
    # Key j is in chunk j % chunks. The k largest logits are in the k chunks with the largest peaks.
    peaks = logits[..., :whole].unflatten(-1, (length, chunks)).amax(dim=-2)
    chosen = peaks.topk(k, dim=-1, sorted=False).indices
    keys = (chosen.unsqueeze(-2) + torch.arange(0, whole, chunks, device=logits.device).unsqueeze(-1)).flatten(-2)
    if whole < columns:
        rest = torch.arange(whole, columns, device=logits.device)
        keys = torch.cat([keys, rest.expand(*keys.shape[:-1], -1)], dim=-1)
    values, places = logits.gather(-1, keys).topk(k, dim=-1)
    return values, keys.gather(-1, places)
