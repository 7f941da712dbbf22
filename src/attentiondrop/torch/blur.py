"""Blur as ordinary fused attention: convolving a logit row along the keys is attending to convolved keys.

`sum_d G[d] q.k_{j+d} = q.(sum_d G[d] k_{j+d})`, so the blur costs O(M * width * D) and no N x M tensor exists.
Under a causal mask the identity fails on the last `radius` diagonals: `blur_causal` takes care of those.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..specs import BlurSmoothing, DropHead
from . import regularisers
from .blur_causal import causal_blurred_attention, why_not_causal
from .draws import Active, blur_sigma
from .eager import head_factors
from .inputs import Inputs, repeat_heads
from .visibility import Visibility


def why_not_linear(leaves: list[Active], softcap: float | None, sinks: Tensor | None) -> str | None:
    """The reason why the perturbation itself is not one of queries and keys, or None if it is."""
    other = [leaf.spec.name for leaf in leaves if not isinstance(leaf.spec, BlurSmoothing | DropHead)]
    if other:
        return f"there is no fused path for {' and '.join(other)} yet"
    if softcap is not None:
        return "a soft cap on the logits is not linear, so blurred keys do not give blurred logits"
    if sinks is not None:
        return "SDPA has no attention sinks"
    return None


def why_not_masked(
    inputs: Inputs, leaves: list[Active], visibility: Visibility, bias: Tensor | None, dropout_p: float
) -> str | None:
    """The reason why the mask, bias or dropout of this call forbids blurred keys, or None if nothing does."""
    blurs = _blurs(leaves)
    if blurs and torch.compiler.is_compiling() and inputs.q.dtype == torch.float64 and inputs.q.device.type == "cpu":
        return "the compiler of torch 2.11 takes the log-sum-exp of float64 attention on a CPU for float32"
    if blurs and visibility.pairs is not None:
        if torch.compiler.is_compiling():
            return (
                "a mask with a row dimension cannot be read while compiling (pass it as [..., 1, M] or use is_causal)"
            )
        return "the mask hides different keys from different rows"
    if blurs and visibility.causal:
        return why_not_causal(inputs, blurs, bias, dropout_p)
    return None


def blurred_attention(
    inputs: Inputs, leaves: list[Active], visibility: Visibility, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """Output [B, H, N, E]. `why_not_linear` and `why_not_masked` have found nothing against it."""
    blurs = _blurs(leaves)
    if not blurs:
        output = _attend(inputs, inputs.q, inputs.k, visibility, bias, dropout_p)
    elif visibility.causal:
        output = causal_blurred_attention(inputs, blurs[0], visibility.keys)
    else:
        q, k, bias = _blurred(inputs, blurs, visibility.keys, bias)
        output = _attend(inputs, q, k, visibility, bias, dropout_p)
    for leaf in leaves:
        if isinstance(leaf.spec, DropHead):
            output = output * head_factors(leaf, inputs.shape, inputs.compute_dtype).to(output.dtype)
    return output


def _blurs(leaves: list[Active]) -> list[Active]:
    """The leaves that blur; a kernel of width 1 is the identity."""
    return [leaf for leaf in leaves if isinstance(leaf.spec, BlurSmoothing) and leaf.spec.width > 1]


def _blurred(
    inputs: Inputs, blurs: list[Active], visible_keys: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries, keys and bias such that their logits are the blurred logits of the original ones."""
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
    return q.to(inputs.q.dtype), k.to(inputs.k.dtype), None if bias is None else bias.to(inputs.q.dtype)


def _attend(
    inputs: Inputs, q: Tensor, k: Tensor, visibility: Visibility, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """SDPA on blurred operands; rows that see no key give zeros."""
    v = repeat_heads(inputs.v, k.shape[1])
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
        q, k, v, mask, dropout_p, is_causal, scale=inputs.scale, enable_gqa=k.shape[1] != q.shape[1]
    )
    return output if blind is None else output.masked_fill(blind, 0.0)
