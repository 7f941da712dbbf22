"""Causal blur without an N x M tensor.

Row i sees the keys j <= i, and the blur has radius r. For j <= i - r all keys under the blur are visible, so this part
is plain attention on blurred keys: causal attention of the rows from r on. On the r diagonals i - r < j <= i the blur
is cut off by the mask; their logits are computed from 2r diagonals of the original logits. One softmax runs over both
parts, which are merged by their log-sum-exp.

The backward needs no gradient of a log-sum-exp. The softmax gradient of every logit is `P * (dO.v - delta)`, where P
and delta = dO.O belong to both parts together. Fused backward kernels compute P from the log-sum-exp that they are
given, and delta from the output. Given the merged ones, they return the exact gradient of their part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...specs import BlurSmoothing
from ..call.inputs import repeat_heads
from ..call.leaves import Active
from ..call.one_call import Call
from ..eager.regularisers import convolve_keys
from ..eager.table import blur_kernel
from ..kernels.attention_with_lse import Part, attend_with_lse, attend_with_lse_backward
from ..kernels.support import has_kernels
from . import blur_operators as _registered  # noqa: F401
from .blur_arguments import blur_arguments, suits_operators
from .operators import Operator, register


def causal_blurred_attention(call: Call, blur: Active) -> Tensor:
    """Output [B, H, N, E] of causal attention over blurred logits, for a kernel wider than 1."""
    inputs, visible_keys = call.inputs, call.visibility.keys
    spec: BlurSmoothing = blur.spec
    output: Tensor
    if has_kernels(inputs.q) and suits_operators(blur):
        gate, rest = blur_arguments(blur)
        output, _, _ = torch.ops.attentiondrop.causal_blurred_attention(
            inputs.q, inputs.k, inputs.v, visible_keys, blur.seed, gate, *rest, inputs.scale
        )
        return output
    dtype = inputs.compute_dtype
    heads = inputs.shape.heads
    q, k, v = inputs.q, repeat_heads(inputs.k, heads), repeat_heads(inputs.v, heads)
    kernel = blur_kernel(blur, inputs.shape, dtype)
    blurred = convolve_keys(k.to(dtype), visible_keys, kernel, spec.edges).to(k.dtype)
    band = _band_logits(q.to(dtype) * inputs.scale, k.to(dtype), visible_keys, kernel, spec.edges)
    output, _, _ = torch.ops.attentiondrop.merged_attention(q, blurred, v, band, visible_keys, inputs.scale)
    return output


def _band_logits(q: Tensor, k: Tensor, visible_keys: Tensor | None, kernel: Tensor, edges: str) -> Tensor:
    """The blurred logits of the cut-off diagonals: entry [..., i, t] belongs to key i - t, -inf where it is hidden."""
    radius = kernel.shape[-1] // 2
    rows, diagonals = q.shape[-2], 2 * radius
    if visible_keys is None:
        column = torch.ones(1, 1, k.shape[-2], 1, dtype=k.dtype, device=k.device)
    else:
        column = visible_keys.transpose(-1, -2).to(k.dtype)
    visible = torch.cat([_diagonal(column, rows, t) for t in range(diagonals)], dim=-1)
    raw = torch.stack([(q * _diagonal(k, rows, t)).sum(-1) for t in range(diagonals)], dim=-1)
    # The blurred logit of key i - t sums the original diagonals u, each times the kernel's weight at offset t - u.
    index = torch.arange(diagonals, device=k.device)
    place = radius + index[None, :radius] - index[:, None]
    gather = kernel[:, :, place.clamp_min(0)].masked_fill(place < 0, 0.0)
    band = raw.where(visible > 0, 0.0) @ gather
    if edges == "renormalize":
        share = visible @ gather
        band = band / share.where(share > 0, 1.0)
    return band.masked_fill(visible[..., :radius] == 0, -torch.inf)


def _diagonal(x: Tensor, rows: int, distance: int) -> Tensor:
    """Row i of the result is row i - `distance` of `x` [..., M, D], zeros where there is none."""
    padded = F.pad(x, (0, 0, distance, max(0, rows - x.shape[-2])))
    return padded.narrow(-2, 0, rows)


def _from_diagonal(x: Tensor, length: int, distance: int) -> Tensor:
    """The transpose of `_diagonal`: row j of the result is row j + `distance` of `x`."""
    shifted = x[..., distance:, :]
    return F.pad(shifted, (0, 0, 0, max(0, length - shifted.shape[-2]))).narrow(-2, 0, length)


def _merged_attention(
    q: Tensor, k: Tensor, v: Tensor, band: Tensor, visible_keys: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One softmax over two parts: causal attention of the rows from r on over blurred keys, and r explicit diagonals.

    Returns the output, and what the backward needs: the log-sum-exp of each row and the weights of the diagonals.
    """
    rows, radius = q.shape[-2], band.shape[-1]
    columns = _columns(k, rows, radius)
    values = v.to(band.dtype)
    lse = torch.full(q.shape[:-1], -torch.inf, dtype=band.dtype, device=q.device)
    output = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=band.dtype, device=q.device)
    if columns > 0:
        keys = None if visible_keys is None else visible_keys[..., :columns]
        part = attend_with_lse(q[..., radius:, :], k[..., :columns, :], v[..., :columns, :], keys, scale)
        lse[..., radius:], output[..., radius:, :] = part.lse, part.output
        if keys is not None:
            blind = ~_sees_a_key(keys, rows - radius)
            lse[..., radius:].masked_fill_(blind, -torch.inf)
            output[..., radius:, :].masked_fill_(blind.unsqueeze(-1), 0.0)
    merged = torch.logsumexp(torch.cat([lse.unsqueeze(-1), band], dim=-1), dim=-1)
    # A row that sees no key gets a finite lse. All its logits are -inf, so all its weights are 0.
    merged = merged.masked_fill(merged == -torch.inf, 0.0)
    weights = torch.exp(band - merged.unsqueeze(-1))
    output *= torch.exp(lse - merged).unsqueeze(-1)
    for t in range(radius):
        output += weights[..., t : t + 1] * _diagonal(values, rows, t)
    return output.to(q.dtype), merged, weights


def _merged_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    weights: Tensor,
    visible_keys: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the diagonals' logits."""
    rows, radius, length = q.shape[-2], weights.shape[-1], k.shape[-2]
    columns = _columns(k, rows, radius)
    wide, values = grad.to(weights.dtype), v.to(weights.dtype)
    delta = (wide * output.to(weights.dtype)).sum(-1, keepdim=True)
    d_q, d_k, d_v, d_band = (torch.zeros_like(x) for x in (q, k, values, weights))
    for t in range(radius):
        weight = weights[..., t : t + 1]
        d_band[..., t : t + 1] = weight * ((wide * _diagonal(values, rows, t)).sum(-1, keepdim=True) - delta)
        d_v += _from_diagonal(weight * wide, length, t)
    if columns > 0:
        part_q, part_k, part_v = attend_with_lse_backward(
            grad[..., radius:, :].contiguous(),
            q[..., radius:, :],
            k[..., :columns, :],
            v[..., :columns, :],
            Part(output[..., radius:, :], lse[..., radius:]),
            None if visible_keys is None else visible_keys[..., :columns],
            scale,
        )
        d_q[..., radius:, :] = part_q
        d_k[..., :columns, :] = part_k
        d_v[..., :columns, :] += part_v
    return d_q, d_k, d_v.to(v.dtype), d_band


def _columns(k: Tensor, rows: int, radius: int) -> int:
    """How many blurred keys any row sees."""
    return min(k.shape[-2], max(rows - radius, 0))


def _sees_a_key(keys: Tensor, rows: int) -> Tensor:
    """Which of `rows` causal rows see at least one visible key: [B or 1, H or 1, rows]."""
    seen = keys.squeeze(-2).cumsum(dim=-1, dtype=torch.int32) > 0
    missing = rows - seen.shape[-1]
    if missing > 0:
        seen = torch.cat([seen, seen[..., -1:].expand(*seen.shape[:-1], missing)], dim=-1)
    return seen[..., :rows]


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, band: Tensor, visible_keys: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1]), band.new_empty(q.shape[:-1]), band.new_empty(band.shape)


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(rest[2])


register(
    Operator(
        "merged_attention",
        ("q", "k", "v", "band"),
        "Tensor? visible_keys, float scale",
        ("output", "lse", "weights"),
        _merged_attention,
        _merged_attention_backward,
        _fake_forward,
        _fake_backward,
        kept=3,
    )
)
