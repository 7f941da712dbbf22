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
from .derivatives import register_gradients

_library = torch.library.Library("attentiondrop", "FRAGMENT")
_PLAN = f"Tensor seed, Tensor? gate, {SIGMA}, bool both, str kind, float scale"
_library.define(f"blurred_attention(Tensor q, Tensor k, Tensor v, {_PLAN}) -> (Tensor, Tensor)")
_library.define(
    f"blurred_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, {_PLAN})"
    " -> (Tensor, Tensor, Tensor)"
)


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


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, seed, gate, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, seed, gate)


def _gradients(ctx: Any, grad: Tensor, unused: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.attentiondrop.blurred_attention_backward(grad, *ctx.saved_tensors, *ctx.rest)
    return (*found, None, None, *[None] * len(ctx.rest))


_library.impl("blurred_attention", _forward, "CompositeExplicitAutograd")
_library.impl("blurred_attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("attentiondrop::blurred_attention", _fake_forward, lib=_library)
torch.library.register_fake("attentiondrop::blurred_attention_backward", _fake_backward, lib=_library)
register_gradients(_library, "blurred_attention", _gradients, _keep)
