"""`attentiondrop.torch.kernels.library_attention` where there is no GPU, for the interpreter: torch's flash attention on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from attentiondrop.torch.call.inputs import repeat_heads

_aten = torch.ops.aten


def forward(kind: str, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
    output, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, scale=scale)
    return output, lse


def backward(
    kind: str, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    repeated = [repeat_heads(x, q.shape[1]) for x in (k, v)]
    d_q, *rest = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, *repeated, output, lse, 0.0, is_causal, scale=scale
    )
    d_k, d_v = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in rest)
    return d_q, d_k, d_v
