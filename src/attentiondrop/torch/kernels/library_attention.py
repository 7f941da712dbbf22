"""The attention kernels of torch, called directly: with the log-sum-exp, and with a backward for a given log-sum-exp.

`F.scaled_dot_product_attention` is not enough for two reasons. It saves the keys that it gets, so blurred keys would
stay in memory until the backward; here the caller keeps the original keys and blurs them again. And it does not return
the log-sum-exp, which causal blur needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .support import compute_capability

_aten = torch.ops.aten


def choose(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Which kernel serves plain or causal attention on these tensors: "cudnn", "flash" or None.

    cuDNN comes first, since it is faster on an H200 (`docs/speed.md`). The switches of `torch.backends.cuda` are
    respected. The choice depends on device, dtype and shapes only, which a compiler knows, too.
    """
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16) or torch.version.hip is not None:
        return None
    size = q.shape[-1]
    fits = k.shape[1] == v.shape[1] and k.shape[-1] == v.shape[-1] == size
    if not fits or size % 8 or size > 256 or q.shape[2] < 2 or k.shape[2] < 2:
        return None
    # (Branches: a compiler for changing sizes then only asks which case it is.)
    upto = 128 if size <= 128 else 256
    if _ends_with_half(k.shape[2]):
        return _kernel_for(q.device.index, upto, half=True)
    return _kernel_for(q.device.index, upto, half=False)


#: The first cuDNN whose gradients are right at all lengths, as `torch.backends.cudnn.version` says it.
_FIRST_SOUND = 92600


def cudnn_may_fail(columns: int) -> bool:
    """Whether cuDNN's gradients may be NaN with so many keys.

    Its kernels for Hopper take 128 keys at a time. Before 9.26, where half of the last ones are missing, these count
    with a logit of 0: if all logits of a row are below -89, the exponential overflows (PyTorch's issue 196678).
    """
    return _ends_with_half(columns) and (torch.backends.cudnn.version() or 0) < _FIRST_SOUND


def _ends_with_half(columns: int) -> bool:
    return columns % 128 == 64


def _kernel_for(index: int, upto: int, half: bool) -> str | None:
    """The same for head sizes up to 128 or 256."""
    capability = compute_capability(index)
    # Not cuDNN where results must not vary, as in SDPA: its backward adds in an order that changes from run to run.
    varies = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    unsound = varies or (half and cudnn_may_fail(64))
    if capability >= 90 and upto == 128 and torch.backends.cuda.cudnn_sdp_enabled() and not unsound:
        return "cudnn"
    return "flash" if capability >= 80 and torch.backends.cuda.flash_sdp_enabled() else None


# A compiler treats the result as a constant, as it does with SDPA's own choice.
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
    # Seed and offset of dropout. There is no dropout, so the kernels do not read them.
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
