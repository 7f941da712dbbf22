"""Blurred attention without a mask, as one operator that does not store the blurred keys.

The backward blurs the keys again, which is one short pass over them. Storing the blurred ones would need as much memory
as the keys themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.inputs import laid_out, unit_stride
from ..call.leaves import Active
from ..call.one_call import Call
from ..kernels import library_attention
from .blur_arguments import blur_arguments
from .blur_operators import SIGMA
from .operators import Operator, like_inputs, register


def blurred_attention(call: Call, blur: Active, kernel: str) -> Tensor:
    """Output [B, H, N, E] of attention over blurred logits, without a mask, by the `kernel` that `dispatch` chose."""
    inputs = call.inputs
    gate, sigma = blur_arguments(blur)
    both = blur.spec.axes == "both"
    output: Tensor = torch.ops.attentiondrop.blurred_attention(
        inputs.q, inputs.k, inputs.v, blur.seed, gate, *sigma, both, kernel, inputs.scale
    )[0]
    return output


def _blurred(x: Tensor, seed: Tensor, gate: Tensor | None, sigma: Any, transposed: bool = False) -> Tensor:
    blurred: Tensor = torch.ops.attentiondrop.blur(x, seed, gate, None, *sigma, transposed)
    return blurred


def _forward(q: Tensor, k: Tensor, v: Tensor, seed: Tensor, gate: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    *sigma, both, kind, scale = rest
    k = _blurred(k, seed, gate, sigma)
    q = _blurred(q, seed, gate, sigma) if both else unit_stride(q)
    output, lse = library_attention.forward(kind, q, k, unit_stride(v), False, scale)
    return laid_out(output, torch.empty_like(q, device="meta")), lse


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    seed: Tensor,
    gate: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    *sigma, both, kind, scale = rest
    told = [torch.empty_like(x, device="meta") for x in (q, k, v)]
    k = _blurred(k, seed, gate, sigma)
    q = _blurred(q, seed, gate, sigma) if both else unit_stride(q)
    d_q, d_k, d_v = library_attention.backward(kind, grad, q, k, unit_stride(v), output, lse, False, scale)
    d_k = _blurred(d_k, seed, gate, sigma, transposed=True)
    d_q = _blurred(d_q, seed, gate, sigma, transposed=True) if both else d_q
    return laid_out(d_q, told[0]), laid_out(d_k, told[1]), laid_out(d_v, told[2])


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    # Both kernels write their output in the memory order of the queries.
    return torch.empty_like(unit_stride(q)), q.new_empty(library_attention.lse_shape(rest[-2], q), dtype=torch.float32)


register(
    Operator(
        "blurred_attention",
        ("q", "k", "v"),
        f"Tensor seed, Tensor? gate, {SIGMA}, bool both, str kind, float scale",
        ("output", "lse"),
        _forward,
        _backward,
        _fake_forward,
        like_inputs,
    )
)
