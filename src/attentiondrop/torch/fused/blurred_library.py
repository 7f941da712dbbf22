"""Blurred attention without masks as one operator that keeps nothing blurred: the backward blurs the keys again.

Blurring is one short pass over the keys; keeping its result would cost as much memory as a third of the projections.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.inputs import laid_out, unit_stride
from ..kernels import library_attention
from .blur_operators import SIGMA
from .operators import Operator, like_inputs, register


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
