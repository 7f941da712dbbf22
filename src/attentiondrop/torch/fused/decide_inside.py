"""The operator behind every fused path that decides inside the attention: Triton kernels on CUDA, row blocks on a CPU.

Triton is imported when a CUDA path first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import Call, empty_lse, empty_notes, output_like
from ..kernels import support
from .operators import Operator, like_inputs, register


def _forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    if q.device.type in support.KERNEL_DEVICES:
        from ..kernels.decide import launch

        output, lse, notes = launch.forward(q, k, v, Call(*plan))
        return (output, lse, *notes)
    from .row_blocks import blockwise_forward

    output, lse = blockwise_forward(q, k, v, Call(*plan))
    return (output, lse, *empty_notes(q, k, "", 0))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    notes, plan = rest[:5], rest[5:]
    if q.device.type in support.KERNEL_DEVICES:
        from ..kernels.decide import launch

        gradients: tuple[Tensor, Tensor, Tensor] = launch.backward(
            grad, q, k, v, output, lse, launch.Notes(*notes), Call(*plan)
        )
        return gradients
    from .row_blocks import blockwise_backward

    return blockwise_backward(grad, q, k, v, Call(*plan))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    drop, top = plan[6], plan[7]
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
