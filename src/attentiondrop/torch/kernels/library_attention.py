"""The attention kernels that torch ships, called with what they hide: the log-sum-exp, and a backward for a given one.

Why not `F.scaled_dot_product_attention`: it saves the keys it was given, so blurred keys would stay in memory until the
backward; here a caller keeps the original ones and blurs them again. And it hides the log-sum-exp, which causal blur
needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .support import compute_capability

_aten = torch.ops.aten


def choose(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Which kernel serves plain or causal attention on these tensors: "cudnn", "flash" or None.

    cuDNN first: on an H200 it took 0.59 to 0.64 of the time of flash attention (`benchmarks/results`). The switches of
    `torch.backends.cuda` are respected. Decided by what a compiler knows as well: device, dtype and shapes.
    """
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16) or torch.version.hip is not None:
        return None
    size = q.shape[-1]
    fits = k.shape[1] == v.shape[1] and k.shape[-1] == v.shape[-1] == size
    if not fits or size % 8 or q.shape[2] < 2 or k.shape[2] < 2:
        return None
    return _kernel_for(q.device.index, size)


def _kernel_for(index: int, size: int) -> str | None:
    capability = compute_capability(index)
    if capability >= 90 and size <= 128 and torch.backends.cuda.cudnn_sdp_enabled():
        return "cudnn"
    return "flash" if capability >= 80 and size <= 256 and torch.backends.cuda.flash_sdp_enabled() else None


# A compiler takes the result as a constant, as it does with SDPA's own choice.
_kernel_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forward(kind: str, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, E] and the log-sum-exp in the kernel's own shape. Keys may be grouped."""
    if kind == "cudnn":
        found = _aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal, False, scale=scale)
    else:
        found = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
    return found[0], found[1]


def lse_shape(kind: str, q: Tensor) -> tuple[int, ...]:
    """The shape of the log-sum-exp that `forward` returns."""
    return (*q.shape[:-1], 1) if kind == "cudnn" else tuple(q.shape[:-1])


def backward(
    kind: str,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    rows, columns = q.shape[2], k.shape[2]
    # The seed and offset of dropout, which there is none of: nothing reads them, so nothing fills them.
    unused = torch.empty((), dtype=torch.int64, device=q.device)
    if kind == "cudnn":
        d_q, d_k, d_v = _aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, output, lse, unused, unused, None, None, None, rows, columns, 0.0, is_causal, scale=scale
        )
    else:
        d_q, d_k, d_v = _aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, output, lse, None, None, rows, columns, 0.0, is_causal, unused, unused, scale=scale
        )
    return d_q, d_k, d_v
