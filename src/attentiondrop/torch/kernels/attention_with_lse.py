"""Causal fused attention that also returns the log-sum-exp of each row, and its backward for a given log-sum-exp.

`F.scaled_dot_product_attention` does not return the log-sum-exp, so this module calls the operators behind it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..call.inputs import repeat_heads, unit_stride
from . import library_attention

_aten = torch.ops.aten
_EFFICIENT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class Part(NamedTuple):
    """Attention over a part of the keys: `output` [B, H, N, E] and `lse` [B, H, N]."""

    output: Tensor
    lse: Tensor


def has_lse(q: Tensor) -> bool:
    """Whether torch has an attention operator with a log-sum-exp for such queries."""
    kind = q.device.type
    return kind == "cpu" or (kind == "cuda" and q.dtype in _EFFICIENT_DTYPES)


def attend_with_lse(q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor | None, scale: float) -> Part:
    """Causal attention; keys may be grouped. If `visible_keys` hides all keys of a row, its result means nothing."""
    rows, size = q.shape[-2], v.shape[-1]
    # The operators behind SDPA read wrong memory where SDPA itself would copy first.
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    kind = _library_kernel(q, k, v, visible_keys)
    if kind is not None:
        output, lse = library_attention.forward(kind, q, k, v, True, scale)
        return Part(output, lse.view(q.shape[:-1]))
    q, k, v = _same_size(q, *(repeat_heads(x, q.shape[1]) for x in (k, v)))
    bias = _key_bias(q, k, visible_keys)
    if q.device.type == "cpu":
        output, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, attn_mask=bias, scale=scale)
    else:
        output, lse, _, _ = _aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, True, scale=scale)
    return Part(output[..., :size], lse[..., :rows])


def attend_with_lse_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Part, visible_keys: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v of a part whose keys share the softmax with other keys.

    `whole` holds output and log-sum-exp over all keys. If keys are grouped, the gradients of k and v have either the
    key heads or the query heads.
    """
    size, value_size = q.shape[-1], v.shape[-1]
    grad, q, k, v = unit_stride(grad), unit_stride(q), unit_stride(k), unit_stride(v)
    kind = _library_kernel(q, k, v, visible_keys)
    if kind is not None:
        lse = whole.lse.contiguous().view(library_attention.lse_shape(kind, q))
        return library_attention.backward(kind, grad, q, k, v, whole.output, lse, True, scale)
    q, k, v = _same_size(q, *(repeat_heads(x, q.shape[1]) for x in (k, v)))
    grad, output = (F.pad(x, (0, v.shape[-1] - value_size)) for x in (grad, whole.output))
    bias = _key_bias(q, k, visible_keys)
    lse = whole.lse
    if q.device.type == "cpu":
        d_q, d_k, d_v = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, output, lse, 0.0, True, attn_mask=bias, scale=scale
        )
    else:
        # The kernel assumes the memory order in which its forward writes outputs, [B, N, H, E].
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
        # It reads the log-sum-exp in blocks of 32 rows.
        lse = F.pad(lse, (0, -lse.shape[-1] % 32)).contiguous()
        no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
        d_q, d_k, d_v, _ = _aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, bias, output, lse, no_dropout, no_dropout, 0.0, [True, True, True, False], True, scale=scale
        )
    return d_q[..., :size], d_k[..., :size], d_v[..., :value_size]


def _library_kernel(q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor | None) -> str | None:
    """A faster kernel, if no key is hidden and there are as many rows as keys (otherwise its causal mask differs)."""
    return library_attention.choose(q, k, v) if visible_keys is None and q.shape[2] == k.shape[2] else None


def _same_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad head sizes with zeros to a common size that the kernels accept; zeros change neither logits nor outputs."""
    size = max(q.shape[-1], v.shape[-1])
    if q.device.type != "cpu":
        size += -size % 8
    return (
        F.pad(q, (0, size - q.shape[-1])),
        F.pad(k, (0, size - k.shape[-1])),
        F.pad(v, (0, size - v.shape[-1])),
    )


def _key_bias(q: Tensor, k: Tensor, visible_keys: Tensor | None) -> Tensor | None:
    """Key padding as an additive mask in the form that the operators take."""
    if visible_keys is None:
        return None
    bias = torch.zeros(visible_keys.shape, dtype=q.dtype, device=q.device).masked_fill(~visible_keys, -torch.inf)
    if q.device.type == "cpu":
        return bias
    # The memory-efficient kernel needs aligned rows and a mask with all dimensions.
    columns = k.shape[-2]
    bias = F.pad(bias, (0, -columns % 16))[..., :columns]
    return bias.expand(*q.shape[:-1], columns)
