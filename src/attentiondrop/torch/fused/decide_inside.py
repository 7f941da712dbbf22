"""The operator behind every fused path that decides inside the attention: Triton kernels on CUDA, row blocks on a CPU.

Operators of our own rather than a `torch.autograd.Function`: compilers take them as they are, with a shape for each
output, and torch 2.11 traces the backward of such a function wrongly. Triton is imported when a CUDA path first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import Call, empty_lse, empty_notes, output_like
from ..kernels import support as kernel_support
from .derivatives import register_gradients

_library = torch.library.Library("attentiondrop", "FRAGMENT")
_PLAN = (
    "Tensor? visible, Tensor? bias, Tensor seed, Tensor? gates, float[] rates, int[] streams, str drop, int top,"
    " bool is_causal, float scale"
)
_library.define(
    f"fused_attention(Tensor q, Tensor k, Tensor v, {_PLAN})"
    " -> (Tensor output, Tensor lse, Tensor low, Tensor high, Tensor cut, Tensor keep, Tensor tied)"
)
_library.define(
    "fused_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, Tensor low,"
    f" Tensor high, Tensor cut, Tensor keep, Tensor tied, {_PLAN}) -> (Tensor, Tensor, Tensor)"
)


def _forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    if q.device.type in kernel_support.KERNEL_DEVICES:
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
    if q.device.type in kernel_support.KERNEL_DEVICES:
        from ..kernels.decide import launch

        gradients: tuple[Tensor, Tensor, Tensor] = launch.backward(
            grad, q, k, v, output, lse, launch.Notes(*notes), Call(*plan)
        )
        return gradients
    from .row_blocks import blockwise_backward

    return blockwise_backward(grad, q, k, v, Call(*plan))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    drop, top = plan[6], plan[7]
    if q.device.type in kernel_support.KERNEL_DEVICES:
        return (output_like(q, v), empty_lse(q), *empty_notes(q, k, drop, top))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (output_like(q, v), q.new_empty(q.shape[:-1], dtype=wide), *empty_notes(q, k, "", 0))


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, visible, bias, seed, gates, *numbers = inputs
    ctx.save_for_backward(q, k, v, visible, bias, seed, gates, *output)
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, visible, bias, seed, gates, *results = ctx.saved_tensors
    nothing = (None,) * (4 + len(ctx.numbers))
    if grad is None:
        return (None, None, None, *nothing)
    found = torch.ops.attentiondrop.fused_attention_backward(
        grad, q, k, v, *results, visible, bias, seed, gates, *ctx.numbers
    )
    return (*found, *nothing)


_library.impl("fused_attention", _forward, "CompositeExplicitAutograd")
_library.impl("fused_attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("attentiondrop::fused_attention", _fake_forward, lib=_library)
torch.library.register_fake("attentiondrop::fused_attention_backward", _fake_backward, lib=_library)
register_gradients(_library, "fused_attention", _gradients, _keep)
