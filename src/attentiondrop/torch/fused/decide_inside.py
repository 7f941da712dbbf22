"""Attention that decides at single logits or weights, as one operator: Triton kernels on CUDA, row blocks on a CPU.

Triton is imported when the operator first runs on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.blocks import Blocks
from ..call.decisions import Decisions, empty_lse, empty_notes, output_like
from ..call.one_call import Call
from ..call.stages import Plan, WeightDrop
from ..eager.regularisers import gaussian_kernel
from ..eager.table import blur_sigma
from ..kernels import support
from ..kernels.shared.tiles import largest_tile
from .blurred_keys import operands
from .operators import Operator, like_inputs, register
from .slots import decisions_of, weight_drop_of


def decided_attention(call: Call, plan: Plan, blur_logits: bool = False) -> Tensor:
    """Output [B, H, N, E] of attention with noise, a drop and dropouts, after the blurs if there are any.

    With `blur_logits`, row blocks blur the logits if there is a blur, since rows do not share blurred keys.
    """
    inputs, visibility, kernel, renormalize = call.inputs, call.visibility, None, False
    q, k, v, bias = operands(call, () if blur_logits else plan.blurs)
    if blur_logits and plan.blurs:
        (leaf,) = plan.blurs
        sigma = blur_sigma(leaf, inputs.shape, inputs.compute_dtype)
        kernel, renormalize = gaussian_kernel(sigma, leaf.spec.width), leaf.spec.edges == "renormalize"
    visible = visibility.keys if visibility.pairs is None else visibility.pairs
    seed, gates, *numbers = decisions_of(call, plan)
    states, size, patterns = visibility.blocks or Blocks(None, 0, None)  # type: ignore[arg-type]
    tensors = visible, bias, seed, gates, states, patterns, kernel
    window = list(visibility.window or ())
    weight_drop = weight_drop_of(plan.dropout, inputs.shape.columns)
    local = window, size, renormalize
    results = torch.ops.attentiondrop.fused_attention(q, k, v, *tensors, *numbers, *local, *weight_drop)
    output: Tensor = results[0]
    return output


def _decisions(*rest: Any) -> Decisions:
    """The arguments of the operator after q, k and v: tensors come first in its schema."""
    visible, bias, seed, gates, states, patterns, kernel, rates, streams, drop, top, is_causal, scale, *local = rest
    window, size, renormalize, *weight_drop = local
    return Decisions(
        visible,
        bias,
        seed,
        gates,
        rates,
        streams,
        drop,
        top,
        is_causal,
        scale,
        tuple(window) if window else None,
        None if states is None else Blocks(states, size, patterns),
        kernel,
        renormalize,
        WeightDrop(*weight_drop),
    )


def why_not_by_kernels(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks | None) -> str | None:
    """The reason why Triton kernels do not do it; where row blocks do not either, it is not done."""
    if reason := support.why_no_kernels(q):
        return reason
    size = max(q.shape[-1], v.shape[-1])
    if size > 256:
        return f"there are no kernels for a head size of {size} (at most 256)"
    tile = largest_tile(q, k, v)
    if blocks is not None and blocks.size % tile:
        return f"the kernels need blocks of a multiple of {tile} rows and keys, these have {blocks.size}"
    return None


def _by_kernels(q: Tensor, k: Tensor, v: Tensor, decisions: Decisions) -> bool:
    """Whether Triton kernels do it. They know blurred keys, and no blur of logits."""
    return decisions.kernel is None and why_not_by_kernels(q, k, v, decisions.blocks) is None


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    decisions = _decisions(*rest)
    if _by_kernels(q, k, v, decisions):
        from ..kernels.decide import launch

        output, lse, notes = launch.forward(q, k, v, decisions)
        return (output, lse, *notes)
    from .row_blocks import blockwise_forward

    output, lse = blockwise_forward(q, k, v, decisions)
    return (output, lse, *empty_notes(q, k, "", 0))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    notes, decisions = rest[:6], _decisions(*rest[6:])
    if _by_kernels(q, k, v, decisions):
        from ..kernels.decide import launch

        gradients: tuple[Tensor, Tensor, Tensor] = launch.backward(
            grad, q, k, v, output, lse, launch.Notes(*notes), decisions
        )
        return gradients
    from .row_blocks import blockwise_backward

    return blockwise_backward(grad, q, k, v, decisions)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    decisions = _decisions(*rest)
    if _by_kernels(q, k, v, decisions):
        notes = empty_notes(q, k, decisions.drop, decisions.top, decisions.dropout.by_share)
        return (output_like(q, v), empty_lse(q), *notes)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (output_like(q, v), q.new_empty(q.shape[:-1], dtype=wide), *empty_notes(q, k, "", 0))


register(
    Operator(
        "fused_attention",
        ("q", "k", "v"),
        "Tensor? visible, Tensor? bias, Tensor seed, Tensor? gates, Tensor? states, Tensor? patterns, Tensor? kernel, "
        "float[] rates, int[] streams, str drop, int top, bool is_causal, float scale, int[] window, int size, "
        "bool renormalize, bool by_share, bool by_column, int span",
        ("output", "lse", "low", "high", "cut", "keep", "tied", "growth"),
        _forward,
        _backward,
        _fake_forward,
        like_inputs,
    )
)
