"""Rows for `flex_attention`, which fuses changes of a logit that need only the logit and its position.

Hard masking needs the k-th largest logit of the row first. Its row here gets these thresholds for free, so its time is
a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .check import Trial, Verdict, compare, plain
from .rows import FLEX, CannotRunError, Row
from .shapes import Shape
from .tensors import Attend, Tensors

# Odd 32-bit constants, as int32.
_ROW, _COLUMN, _MIX = 0x9E3779B1 - 2**32, 0x85EBCA77 - 2**32, 0x7FEB352D
#: How many logits are built at once to compute thresholds.
_CHUNK = 64_000_000


class FlexRow(Row):
    """Plain attention."""

    name = "flex_attention"
    kind = FLEX

    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """Compiled, since flex_attention is made for that."""
        refuse_cpu(tensors)
        return flex(shape, tensors, torch.compile(flex_attention, dynamic=False))

    def check(self, trial: Trial) -> Verdict:
        """Compare with plain attention."""
        return compare(trial, plain)


class FlexHardRow(FlexRow):
    """Hard masking with thresholds that are computed before, outside the timing."""

    name = "flex_attention hard, thresholds given"

    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """Computes the thresholds here."""
        refuse_cpu(tensors)
        return flex_hard(shape, tensors, torch.compile(flex_attention, dynamic=False))

    def check(self, trial: Trial) -> Verdict:
        """Compare with attention, since thresholds and decisions are known."""
        return compare(trial, hard_reference, against="attention with the same decisions")


def refuse_cpu(tensors: Tensors) -> None:
    """Refuse a CPU: torch has no backward of flex_attention there."""
    if tensors.q.device.type != "cuda":
        raise CannotRunError("torch has its backward on CUDA only")


def flex(
    shape: Shape, tensors: Tensors, function: Callable[..., Any], score_mod: Callable[..., Tensor] | None = None
) -> Attend:
    """`function` is `flex_attention`, compiled or not."""
    mask, device = None, tensors.q.device
    if shape.causal:
        mask = create_block_mask(_causal, None, None, shape.length, shape.length, device=str(device))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output: Tensor = function(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=shape.grouped)
        return output

    return attend


def flex_hard(shape: Shape, tensors: Tensors, function: Callable[..., Any], p: float = 0.1, top: int = 5) -> Attend:
    """Zero the logits at or above the threshold of their row, each with probability `p`."""
    limits = thresholds(tensors.q.detach(), tensors.k.detach(), top, shape.causal)
    heads, length = shape.heads, shape.length

    def score_mod(score: Tensor, b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
        dropped = decide((b * heads + h) * length + row, column, p)
        return torch.where((score >= limits[b, h, row]) & dropped, 0.0, score)

    return flex(shape, tensors, function, score_mod)


def hard_reference(part: Shape, tensors: Tensors, p: float = 0.1, top: int = 5) -> Attend:
    """The definition of what `flex_hard` computes, for the first heads of the first sample or for whole samples."""
    limits = thresholds(tensors.q.detach(), tensors.k.detach(), top, part.causal)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(part.heads // part.key_heads, dim=1) for x in (k, v))
        logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        lines = torch.arange(part.batch * part.heads * part.length, dtype=torch.int32, device=q.device)
        columns = torch.arange(part.length, dtype=torch.int32, device=q.device)
        dropped = decide(lines.view(part.batch, part.heads, part.length, 1), columns, p)
        logits = torch.where((logits >= limits[..., None]) & dropped, 0.0, logits)
        if part.causal:
            logits = logits.masked_fill(_hidden(part.length, q), -math.inf)
        return logits.softmax(dim=-1) @ v

    return attend


def decide(line: Tensor, column: Tensor, p: float) -> Tensor:
    """Whether a position is dropped: if its hash, in int32 with wrap-around, is below the share `p` of the range."""
    mixed = (line * _ROW) ^ (column * _COLUMN)
    mixed = mixed ^ ((mixed >> 16) & 0xFFFF)
    mixed = mixed * _MIX
    mixed = mixed ^ ((mixed >> 15) & 0x1FFFF)
    return (mixed & 0xFFFFFF) < int(p * 2**24)


def thresholds(q: Tensor, k: Tensor, top: int, causal: bool) -> Tensor:
    """The middle between the k-th and the next logit of each row [B, H, N], so that rounding moves no logit across."""
    batch, heads, length = q.shape[:3]
    group = heads // k.shape[1]
    flat_q, flat_k = q.flatten(0, 1), k.flatten(0, 1)
    hidden = _hidden(length, q) if causal else None
    found, at_once = [], max(1, _CHUNK // length**2)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    for start in range(0, batch * heads, at_once):
        some = torch.arange(start, min(start + at_once, batch * heads), device=q.device)
        keys = flat_k[some // group].to(wide)  # heads in order share key heads in order
        logits = flat_q[some].to(wide) @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        if hidden is not None:
            logits = logits.masked_fill(hidden, -math.inf)
        largest = logits.topk(min(top + 1, length), dim=-1).values
        found.append(largest[..., -2:].mean(dim=-1) if length > top else torch.full_like(largest[..., 0], -math.inf))
    return torch.cat(found).view(batch, heads, length)


def _causal(b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


def _hidden(length: int, like: Tensor) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=like.device).triu(1)
