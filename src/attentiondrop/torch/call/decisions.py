"""The arguments of the operators that decide at single logits and weights, and the tensors that they return."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import Blocks
from .stages import WeightDrop

#: The drops that hide logits from the softmax.
HIDING = ("-inf", "key", "column")


class Decisions(NamedTuple):
    """The arguments beside queries, keys and values.

    `visible` and `bias` broadcast to [B, H, N, M]. `rates`, `streams` and `gates` have an entry for each of four slots:
    noise, a drop of logits, a drop of weights, and `dropout_p`. A stream of -1 says that the slot is empty. The
    rate of a slot is multiplied by its gate, if there are gates. `drop` is "" (none), "zero" or "-inf" (hard masking of
    the `top` largest), "key" (DropKey) or "column" (DropKey that decides once for all rows of a head).
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
    #: How many keys before and behind its own place a row sees; None: all.
    window: tuple[int, int] | None = None
    blocks: Blocks | None = None
    #: The weights of a blur along the keys, [B or 1, H or 1, width], and whether its edges are renormalised.
    kernel: Tensor | None = None
    renormalize: bool = False
    #: What the third slot does.
    dropout: WeightDrop = WeightDrop()


def is_ranked(drop: str, top: int, columns: int) -> bool:
    """Whether only the `top` largest logits of a row are candidates, rather than all of them."""
    return drop in ("zero", "-inf") and top < columns


def empty_notes(q: Tensor, k: Tensor, drop: str, top: int, by_share: bool = False) -> tuple[Tensor, ...]:
    """Tensors without values for what the forward tells the backward beside the log-sum-exp.

    Each is [B, H, N], or has no elements where it is not needed. low, high and cut bound the candidates of a row (see
    `kernels.shared.logits.is_dropped`), keep is the key that an emptied row keeps, or -1, tied [B, H] says which
    heads have ties, and growth is what the kept weights of a row are multiplied by if `by_share`. Row blocks need none
    of them: their backward decides again.
    """
    full, none = q.shape[:-1], (0,)
    ranked = full if is_ranked(drop, top, k.shape[2]) else none
    kept = full if drop in HIDING or by_share else none
    tied = full[:2] if ranked == full else none
    floats = [q.new_empty(ranked, dtype=torch.float32) for _ in range(2)]
    growth = q.new_empty(full if by_share else none, dtype=torch.float32)
    return (*floats, *(q.new_empty(shape, dtype=torch.int32) for shape in (ranked, kept, tied)), growth)


def empty_lse(q: Tensor) -> Tensor:
    """A tensor without values for the log2-sum-exp2 of each row: [B, H, N].

    For float32 inputs it is [2, B, H, N]: the largest logit, and one over the sum relative to it. Rounding a single
    number would shift all weights of a row by more than float32 should. In 16 bits the weights are rounded more anyway.
    """
    parts = (2,) if q.dtype == torch.float32 else ()
    return q.new_empty(*parts, *q.shape[:-1], dtype=torch.float32)


def output_like(q: Tensor, v: Tensor) -> Tensor:
    """An output without values. It lies in memory as [B, N, H, E], as SDPA's does: joining the heads needs no copy."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
