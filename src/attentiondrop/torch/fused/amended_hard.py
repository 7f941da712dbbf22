"""Hard masking on top of torch's own fused attention, as one operator: what is lost is amended in its results.

The kernels that decide at every logit pay for the decision at every logit, and for not being cuDNN. Here the decision
costs one sweep that finds each row's k largest, and a little for the few that are lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import Call, empty_lse, empty_notes, is_ranked
from ..call.inputs import unit_stride
from ..kernels import library_attention
from .operators import Operator, like_inputs, register

#: More of the largest logits than this are not picked out one by one.
MOST = 8
#: On an H200 this took 0.72 to 0.94 of the time of the kernels of our own at 1,024 keys, less at more, and at 512 keys
#: 0.94 to 1.19; the more, the more peaked the attention is (`benchmarks/results/kernels-h200-torch2.11.txt`).
FEWEST_KEYS = 1024
#: At higher rates many rows lose so much of their weight that they are not amended, but computed a second time.
HIGHEST_RATE = 0.15


def kind_for(q: Tensor, k: Tensor, v: Tensor, drop: str, top: int, rate: float, is_causal: bool, scale: float) -> str:
    """Which of torch's kernels hard masking alone, without masks, can build on; "" for none.

    Not where results must be the same bit for bit: their backward adds up in whatever order it comes.
    """
    if not is_ranked(drop, top, k.shape[2]) or top > MOST or scale <= 0:
        return ""
    if rate > HIGHEST_RATE or k.shape[2] < FEWEST_KEYS:
        return ""
    if (is_causal and q.shape[2] != k.shape[2]) or torch.are_deterministic_algorithms_enabled():
        return ""
    return library_attention.choose(q, k, v) or ""


def _call(*plan: Any) -> tuple[Call, str]:
    """What the kernels take, and which of torch's kernels runs."""
    return Call(None, None, *plan[:-1]), plan[-1]


def _forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    from ..kernels.amend import passes

    results: tuple[Tensor, ...] = passes.forward(q, k, v, *_call(*plan))
    return results


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    from ..kernels.amend import passes
    from ..kernels.decide import launch

    output, lse, listed_lse, lost, low, high, cut, keep = rest[:8]
    call, kind = _call(*rest[8:])
    notes = launch.Notes(low, high, cut, keep, tied=lost)  # listed rows are compared as if they were
    gradients: tuple[Tensor, Tensor, Tensor] = passes.backward(
        grad, q, k, v, output, lse, listed_lse, lost, notes, call, kind
    )
    return gradients


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    call, kind = _call(*plan)
    lse = q.new_empty(library_attention.lse_shape(kind, q), dtype=torch.float32)
    lost = q.new_empty((*q.shape[:-1], call.top), dtype=torch.int32)
    # torch's kernels write their output in the memory order of the queries.
    return torch.empty_like(unit_stride(q)), lse, empty_lse(q), lost, *empty_notes(q, k, call.drop, call.top)[:4]


register(
    Operator(
        "hard_masked_attention",
        ("q", "k", "v"),
        "Tensor seed, Tensor? gates, float[] rates, int[] streams, str drop, int top, bool is_causal, float scale, "
        "str kind",
        ("output", "lse", "listed_lse", "lost", "low", "high", "cut", "keep"),
        _forward,
        _backward,
        _fake_forward,
        like_inputs,
    )
)
