"""Blur as ordinary fused attention: convolving a logit row along the keys is attending to convolved keys.

`sum_d G[d] q.k_{j+d} = q.(sum_d G[d] k_{j+d})`, so the blur costs O(M * width * D) and no N x M tensor exists.
Under a causal mask the identity fails on the last `radius` diagonals: `blurred_causal` takes care of those.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...specs import BlurSmoothing
from ..call.inputs import Inputs, repeat_heads
from ..call.leaves import Active
from ..call.stages import Plan
from ..call.visibility import Visibility
from ..eager import regularisers
from ..eager.table import blur_sigma
from ..kernels import library_attention
from ..kernels.support import has_kernels
from . import blurred_library as _registered  # noqa: F401
from .blur_arguments import blur_arguments, suits_operators
from .blurred_causal import causal_blurred_attention, why_not_causal


def why_not_blurred(
    inputs: Inputs, plan: Plan, visibility: Visibility, bias: Tensor | None, inside: bool
) -> str | None:
    """The reason why the blurs of this call are not attention on blurred keys, or None if they are."""
    if not plan.blurs:
        return None
    if torch.compiler.is_compiling() and inputs.q.dtype == torch.float64 and inputs.q.device.type == "cpu":
        return "the compiler of torch 2.11 takes the log-sum-exp of float64 attention on a CPU for float32"
    if visibility.pairs is not None:
        if torch.compiler.is_compiling():
            return (
                "a mask with a row dimension cannot be read while compiling (pass it as [..., 1, M] or use is_causal)"
            )
        return "the mask hides different keys from different rows, so they do not share blurred keys"
    if visibility.causal:
        if inside:
            return "causal blur together with decisions on single logits or weights needs the logits"
        return why_not_causal(inputs, list(plan.blurs), bias)
    return None


def blurred_attention(inputs: Inputs, plan: Plan, visibility: Visibility, bias: Tensor | None) -> Tensor:
    """Output [B, H, N, E] of plain attention over blurred logits. `why_not_blurred` has found nothing against it."""
    if not plan.blurs:
        return _attend(inputs, inputs.q, inputs.k, visibility, bias)
    if visibility.causal:
        return causal_blurred_attention(inputs, plan.blurs[0], visibility.keys)
    alone = visibility.keys is None and inputs.q.shape[1] == inputs.k.shape[1]
    if _in_one_kernel(inputs, plan.blurs, bias) and alone:
        kind = library_attention.choose(inputs.q, inputs.k, inputs.v)
        if kind is not None:
            return _blurred_in_one(inputs, plan.blurs[0], kind)
    q, k, bias = blurred_operands(inputs, plan.blurs, visibility.keys, bias)
    return _attend(inputs, q, k, visibility, bias)


def _in_one_kernel(inputs: Inputs, blurs: tuple[Active, ...], bias: Tensor | None) -> bool:
    return len(blurs) == 1 and bias is None and has_kernels(inputs.q) and suits_operators(blurs[0])


def _blurred_in_one(inputs: Inputs, leaf: Active, kind: str) -> Tensor:
    output: Tensor
    gate, rest = blur_arguments(leaf)
    output, _ = torch.ops.attentiondrop.blurred_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        leaf.seed,
        gate,
        *rest,
        leaf.spec.axes == "both",
        kind,
        inputs.scale,
    )
    return output


def blurred_operands(
    inputs: Inputs, blurs: tuple[Active, ...], visible_keys: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries, keys and bias such that their logits are the blurred logits of the original ones."""
    if _in_one_kernel(inputs, blurs, bias):
        leaf, k = blurs[0], inputs.k
        if leaf.spec.sampling == "head" or (visible_keys is not None and visible_keys.shape[1] > 1):
            k = repeat_heads(k, inputs.q.shape[1])
        gate, rest = blur_arguments(leaf)
        k = torch.ops.attentiondrop.blur(k, leaf.seed, gate, visible_keys, *rest, False)
        q = inputs.q
        if leaf.spec.axes == "both":
            q = torch.ops.attentiondrop.blur(q, leaf.seed, gate, None, *rest, False)
        return q, k, None
    dtype = inputs.compute_dtype
    q, k = inputs.q, inputs.k.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    by_head = visible_keys is not None and visible_keys.shape[1] > 1
    for leaf in blurs:
        spec: BlurSmoothing = leaf.spec
        kernel = regularisers.gaussian_kernel(blur_sigma(leaf, inputs.shape, dtype), spec.width)
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
    # The bias stays as wide as logits are: it can be far larger than a dot product, and rounding it shows.
    return q.to(inputs.q.dtype), k.to(inputs.k.dtype), bias


def _attend(inputs: Inputs, q: Tensor, k: Tensor, visibility: Visibility, bias: Tensor | None) -> Tensor:
    """SDPA on blurred operands; rows that see no key give zeros."""
    v = repeat_heads(inputs.v, k.shape[1])
    if bias is not None and bias.dtype != q.dtype:
        bias = bias.to(inputs.compute_dtype)
    mask, blind, is_causal = bias, None, visibility.causal
    # SDPA itself knows causality, as long as nothing else needs a mask.
    alone = visibility.keys is None and visibility.pairs is None and bias is None
    visible = None if alone else visibility.dense(inputs.shape.rows, inputs.shape.columns, q.device)
    if visible is not None:
        # A blind row is shown everything and then zeroed: no NaN, neither here nor in the gradient.
        blind = ~visible.any(dim=-1, keepdim=True)
        shown = visible | blind
        mask, is_causal = shown if bias is None else bias.masked_fill(~shown, -torch.inf), False
    output = F.scaled_dot_product_attention(
        q, k, v, mask, 0.0, is_causal, scale=inputs.scale, enable_gqa=k.shape[1] != q.shape[1]
    )
    return output if blind is None else output.masked_fill(blind, 0.0)
