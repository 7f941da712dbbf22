"""Blur as ordinary fused attention: a row of logits blurred along the keys is a row of logits with blurred keys.

`sum_d G[d] q.k_{j+d} = q.(sum_d G[d] k_{j+d})`, so the blur costs O(M * width * D) and no N x M tensor exists.
Under a causal mask this does not hold on the last `radius` diagonals: `blurred_causal` treats those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...specs import BlurSmoothing
from ..call.inputs import repeat_heads
from ..call.leaves import Active
from ..call.one_call import Call
from ..call.stages import Plan
from ..call.visibility import Visibility
from ..eager import regularisers
from ..eager.table import blur_kernel
from ..kernels.support import has_kernels
from . import blur_operators as _registered  # noqa: F401
from .blur_arguments import blur_arguments, suits_operators


class Operands(NamedTuple):
    """What attention takes: queries, keys and values, and what is added to the logits."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None


def sdpa_attention(call: Call, plan: Plan) -> Tensor:
    """Output [B, H, N, E] of SDPA on blurred queries and keys, or on the original ones if there is no blur.

    Rows that see no key give zeros.
    """
    inputs, visibility = call.inputs, call.visibility
    q, k, v, bias = operands(call, plan.blurs)
    if bias is not None and bias.dtype != q.dtype:
        bias = bias.to(inputs.compute_dtype)
    mask, blind, is_causal = bias, None, visibility.causal
    # SDPA itself knows causality, as long as nothing else needs a mask.
    alone = visibility.keys is None and visibility.pairs is None and bias is None
    visible = None if alone else visibility.dense(inputs.shape.rows, inputs.shape.columns, q.device)
    if visible is not None:
        # A row that sees no key is first shown all keys, and its output is then set to 0. So there is no NaN, neither
        # here nor in the gradient.
        blind = ~visible.any(dim=-1, keepdim=True)
        shown = visible | blind
        mask, is_causal = shown if bias is None else bias.masked_fill(~shown, -torch.inf), False
    # (A compiler that does not know the numbers of heads decides here: SDPA takes no open question.)
    is_grouped = True if k.shape[1] != q.shape[1] else False  # noqa: SIM210
    output = F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=inputs.scale, enable_gqa=is_grouped)
    return output if blind is None else output.masked_fill(blind, 0.0)


def repeated_blur(call: Call, plan: Plan) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, None]] | None:
    """`sdpa_attention` of queries, keys, values and seed, for calls that look like `call`; None if it does more."""
    inputs, shape, dtype = call.inputs, call.inputs.shape, call.inputs.compute_dtype
    is_plain = call.visibility == Visibility(False) and call.bias is None and inputs.q.dtype == dtype
    if not is_plain or len(plan.blurs) != 1 or plan.heads or inputs.k.shape[1] != shape.heads:
        return None
    spec, number, scale, groups = plan.blurs[0].spec, plan.blurs[0].number, inputs.scale, plan.blurs[0].groups
    if spec.axes != "keys":
        return None

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, None]:
        kernel = blur_kernel(Active(spec, seed, number, groups=groups), shape, dtype)
        k = regularisers.convolve_keys(k, None, kernel, spec.edges)
        return F.scaled_dot_product_attention(q, k, v, None, 0.0, False, scale=scale), None

    return run


def can_blur_by_kernel(call: Call, blurs: tuple[Active, ...]) -> bool:
    """Whether our Triton kernel blurs the keys, rather than operations of torch."""
    return len(blurs) == 1 and call.bias is None and has_kernels(call.inputs.q) and suits_operators(blurs[0])


def operands(call: Call, blurs: tuple[Active, ...]) -> Operands:
    """Queries, keys, values and bias whose logits are the blurred logits of the call."""
    inputs, visible_keys, bias = call.inputs, call.visibility.keys, call.bias
    if not blurs:
        return Operands(inputs.q, inputs.k, inputs.v, bias)
    if can_blur_by_kernel(call, blurs):
        leaf, k = blurs[0], inputs.k
        if leaf.spec.sampling == "head" or (visible_keys is not None and visible_keys.shape[1] > 1):
            k = repeat_heads(k, inputs.q.shape[1])
        gate, sigma = blur_arguments(leaf)
        k = torch.ops.attentiondrop.blur(k, leaf.seed, gate, visible_keys, *sigma, False)
        q = inputs.q
        if leaf.spec.axes == "both":
            q = torch.ops.attentiondrop.blur(q, leaf.seed, gate, None, *sigma, False)
        return Operands(q, k, repeat_heads(inputs.v, k.shape[1]), None)
    dtype = inputs.compute_dtype
    q, k = inputs.q, inputs.k if inputs.k.dtype == dtype else inputs.k.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    by_head = visible_keys is not None and visible_keys.shape[1] > 1
    for leaf in blurs:
        spec: BlurSmoothing = leaf.spec
        kernel = blur_kernel(leaf, inputs.shape, dtype)
        if by_head or kernel.shape[1] > 1:
            k = repeat_heads(k, q.shape[1])
        k = regularisers.convolve_keys(k, visible_keys, kernel, spec.edges)
        if bias is not None:
            bias, _ = regularisers.blur_smoothing(bias, visible_keys, kernel, "keys", spec.edges)
        if spec.axes == "both":
            q = regularisers.convolve(q.to(dtype), kernel, -2)
            share = regularisers.convolve(torch.ones_like(q[:1, :1, :, :1]), kernel, -2)
            if spec.edges == "renormalize":
                q = q / share
            if bias is not None:
                if bias.shape[-2] == 1:
                    bias = bias.expand(*bias.shape[:-2], q.shape[-2], bias.shape[-1])
                bias = regularisers.convolve(bias, kernel, -2)
                bias = bias / share if spec.edges == "renormalize" else bias
    # The bias stays in the dtype of the logits: it can be far larger than a dot product, so its rounding would be, too.
    if q.dtype != inputs.q.dtype or k.dtype != inputs.k.dtype:
        q, k = q.to(inputs.q.dtype), k.to(inputs.k.dtype)
    return Operands(q, k, repeat_heads(inputs.v, k.shape[1]), bias)
