"""What the operator of `fused.decide_inside` is asked to compute, and the tensors it leaves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Decisions(NamedTuple):
    """The arguments beside queries, keys and values.

    `visible` and `bias` broadcast to [B, H, N, M]. There are four slots, each with a rate, the stream of its draws (-1:
    absent) and, where `gates` is given, a factor for the rate: 0 noise, 1 drop of logits, 2 dropout of the weights, 3
    `dropout_p`. `drop` is "" (none), "zero" or "-inf" (hard masking of the `top` largest) or "key" (DropKey).
    """

    visible: Tensor | None
    bias: Tensor | None
    seed: Tensor
    gates: Tensor | None
    rates: list[float]
    streams: list[int]
    drop: str
    top: int
    is_causal: bool
    scale: float


def is_ranked(drop: str, top: int, columns: int) -> bool:
    """Whether only the `top` largest logits of a row are candidates, rather than all of them."""
    return drop in ("zero", "-inf") and top < columns


def empty_notes(q: Tensor, k: Tensor, drop: str, top: int) -> tuple[Tensor, ...]:
    """What the kernels leave for the backward beside the log-sum-exp, each [B, H, N] or empty where it is not needed.

    low, high and cut bound the candidates of a row (see `kernels.shared.logits.is_dropped`), keep is the key that an
    emptied row keeps, or -1, and tied [B, H] says which heads have ties. Row blocks decide again and leave nothing.
    """
    full, none = q.shape[:-1], (0,)
    ranked = full if is_ranked(drop, top, k.shape[2]) else none
    hidden = full if drop in ("-inf", "key") else none
    tied = full[:2] if ranked == full else none
    floats = [q.new_empty(ranked, dtype=torch.float32) for _ in range(2)]
    return (*floats, *(q.new_empty(shape, dtype=torch.int32) for shape in (ranked, hidden, tied)))


def empty_lse(q: Tensor) -> Tensor:
    """What the kernels leave of each row's sum: its log2-sum-exp2 [B, H, N].

    In float32 [2, B, H, N]: the largest logit, and one over the sum relative to it. A log-sum-exp of 8 is rounded by up
    to half a millionth, and all weights made from it are wrong by about that; 16 bits round them far more.
    """
    parts = (2,) if q.dtype == torch.float32 else ()
    return q.new_empty(*parts, *q.shape[:-1], dtype=torch.float32)


def output_like(q: Tensor, v: Tensor) -> Tensor:
    """[B, N, H, E] in memory, as SDPA returns it, so that joining the heads afterwards is free."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
