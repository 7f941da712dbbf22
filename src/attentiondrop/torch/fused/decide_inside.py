"""Attention that decides at single logits or weights, as one operator: Triton kernels on CUDA, row blocks on a CPU.

Triton is imported when the operator first runs on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import Decisions, empty_lse, empty_notes, output_like
from ..call.one_call import Call
from ..call.stages import Plan
from ..kernels import support
from .blurred_keys import operands
from .operators import Operator, like_inputs, register
from .slots import decisions_of


def decided_attention(call: Call, plan: Plan) -> Tensor:
    """Output [B, H, N, E] of attention with noise, a drop and dropouts, after the blurs if there are any."""
    q, k, v, bias = operands(call, plan.blurs)
    visible = call.visibility.keys if call.visibility.pairs is None else call.visibility.pairs
    results = torch.ops.attentiondrop.fused_attention(q, k, v, visible, bias, *decisions_of(call, plan))
    output: Tensor = results[0]
    return output


def _forward(q: Tensor, k: Tensor, v: Tensor, *decisions: Any) -> tuple[Tensor, ...]:
    if q.device.type in support.KERNEL_DEVICES:
        from ..kernels.decide import launch

        output, lse, notes = launch.forward(q, k, v, Decisions(*decisions))
        return (output, lse, *notes)
    from .row_blocks import blockwise_forward

    output, lse = blockwise_forward(q, k, v, Decisions(*decisions))
    return (output, lse, *empty_notes(q, k, "", 0))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    notes, decisions = rest[:5], rest[5:]
    if q.device.type in support.KERNEL_DEVICES:
        from ..kernels.decide import launch

        gradients: tuple[Tensor, Tensor, Tensor] = launch.backward(
            grad, q, k, v, output, lse, launch.Notes(*notes), Decisions(*decisions)
        )
        return gradients
    from .row_blocks import blockwise_backward

    return blockwise_backward(grad, q, k, v, Decisions(*decisions))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *decisions: Any) -> tuple[Tensor, ...]:
    drop, top = decisions[6], decisions[7]
    if q.device.type in support.KERNEL_DEVICES:
        return (output_like(q, v), empty_lse(q), *empty_notes(q, k, drop, top))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (output_like(q, v), q.new_empty(q.shape[:-1], dtype=wide), *empty_notes(q, k, "", 0))


register(
    Operator(
        "fused_attention",
        ("q", "k", "v"),
        "Tensor? visible, Tensor? bias, Tensor seed, Tensor? gates, float[] rates, int[] streams, str drop, int top, "
        "bool is_causal, float scale",
        ("output", "lse", "low", "high", "cut", "keep", "tied"),
        _forward,
        _backward,
        _fake_forward,
        like_inputs,
    )
)
