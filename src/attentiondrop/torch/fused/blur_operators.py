"""Blur by Triton kernels, as operators: one blurs keys or queries, one is causal attention over blurred logits.

Importing this does not import Triton: the operators do, when they first run. `blurred_causal` explains what the causal
one computes, and why its backward is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import output_like
from ..call.inputs import repeat_heads, unit_stride
from ..kernels.attention_with_lse import Part, attend_with_lse, attend_with_lse_backward
from .operators import Operator, define, differentiate, register

#: What decides the sigmas and the weights of a blur, as in `blur_arguments`.
SIGMA = "int stream, str sampling, float sigma_min, float sigma_max, int width, bool renormalize, int groups"


def _blur(
    x: Tensor,
    seed: Tensor,
    gate: Tensor | None,
    visible: Tensor | None,
    stream: int,
    sampling: str,
    sigma_min: float,
    sigma_max: float,
    width: int,
    renormalize: bool,
    groups: int,
    transposed: bool,
) -> Tensor:
    """Rows x [B, H, M, D] blurred along M, or the transpose of that; hidden rows count as 0 or are left out."""
    from ..kernels.blur.rows import Blur, blur_rows

    x = unit_stride(x)
    out = torch.empty_like(x)
    blur = Blur(seed, gate, stream, sampling, sigma_min, sigma_max, width, renormalize, groups)
    blur_rows(x, out, x.shape[-2], visible, blur, transposed)
    return out


def _fake_blur(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(unit_stride(x))


def _keep_blur(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, seed, gate, visible, *ctx.rest = inputs
    ctx.save_for_backward(seed, gate, visible)


def _blur_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *rest, transposed = ctx.rest
    return (torch.ops.attentiondrop.blur(grad, *ctx.saved_tensors, *rest, not transposed), *[None] * 11)


def _causal(
    q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor | None, seed: Tensor, gate: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, N, E] of causal attention over blurred logits, and what its backward needs.

    That is the log-sum-exp [B, H, N], and the weights [B, H, r, N] of the diagonals on which the kernel is cut off. The
    output of a row that sees no key is 0.

    q [B, H, N, D]; k [B, Hk, M, D] and v [B, Hk, M, E] are not blurred; visible_keys is None or boolean
    [B or 1, H or 1, 1, M].
    """
    from ..kernels.blur.causal_band import merge
    from ..kernels.blur.rows import Blur

    *sigma, scale = rest
    blur = Blur(seed, gate, *sigma)
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    radius = blur.width // 2
    blurred, values, keys = _part_inputs(q, k, v, visible_keys, blur)
    part: tuple[Tensor, Tensor] | None = None
    if blurred is not None:
        output, lse = attend_with_lse(q[..., radius:, :], blurred, values, keys, scale)
        if keys is not None:
            lse = lse.masked_fill(_blind_rows(keys, lse.shape[-1]), -torch.inf)
        part = unit_stride(output), lse
    results = _empty_causal(q, k, v, visible_keys, seed, gate, *rest)
    merge(q, k, v, part, *results, visible_keys, blur, scale)
    return results


def _causal_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    weights: Tensor,
    visible_keys: Tensor | None,
    seed: Tensor,
    gate: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    from ..kernels.blur.causal_band import merge_backward
    from ..kernels.blur.rows import Blur

    *sigma, scale = rest
    blur = Blur(seed, gate, *sigma)
    grad, q, k, v, output = (unit_stride(x) for x in (grad, q, k, v, output))
    lse, weights = lse.contiguous(), weights.contiguous()
    radius = blur.width // 2
    blurred, values, keys = _part_inputs(q, k, v, visible_keys, blur)
    part: tuple[Tensor, Tensor, Tensor] | None = None
    if blurred is not None:
        whole = Part(output[..., radius:, :], lse[..., radius:])
        received = grad[..., radius:, :]
        # torch's kernels read the gradient in the layout of the output. It nearly always has it; if not, it is copied.
        if received.stride() != whole.output.stride():
            received = received.contiguous()
        d_q, d_k, d_v = attend_with_lse_backward(received, q[..., radius:, :], blurred, values, whole, keys, scale)
        part = unit_stride(d_q), unit_stride(d_k), unit_stride(d_v)
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    merge_backward(grad, q, k, v, output, weights, part, grads, visible_keys, blur, scale)
    return grads


def _part_inputs(
    q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor | None, blur: Any
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Blurred keys, values and visible keys of the part without the diagonals: the keys j <= i - r of some row i.

    The blurred keys are None if there is no such key.
    """
    from ..kernels.blur.rows import blur_rows

    heads, length = q.shape[1], k.shape[-2]
    columns = min(length, max(q.shape[-2] - blur.width // 2, 0))
    if columns == 0:
        return None, v, None
    differ = blur.sampling == "head" or (visible_keys is not None and visible_keys.shape[1] > 1)
    shape = (k.shape[0], columns, heads if differ else k.shape[1], k.shape[-1])
    blurred = k.new_empty(shape).transpose(1, 2)
    blur_rows(k, blurred, length, visible_keys, blur, False)
    keys = None if visible_keys is None else visible_keys[..., :columns]
    # Query heads that share a key head still share the blurred one, unless their sigmas or their masks differ.
    return blurred, repeat_heads(v[..., :columns, :], blurred.shape[1]), keys


def _blind_rows(keys: Tensor, rows: int) -> Tensor:
    """Which of `rows` causal rows see no visible key: [B or 1, H or 1, rows]."""
    first = torch.where(keys.any(dim=-1), keys.to(torch.uint8).argmax(dim=-1), rows)
    return torch.arange(rows, device=keys.device) < first


def _empty_causal(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The results without values. The forward fills them; for a compiler they say the shapes and layouts."""
    *_, width, _, _, _ = rest
    q = unit_stride(q)
    batch, heads, rows, _ = q.shape
    # The output has the memory order of the queries, as SDPA's has. Then joining the heads needs no copy. Neither does
    # cuDNN's backward, because the gradient comes in the layout of the output.
    output = output_like(q, v) if q.stride(1) < q.stride(2) else q.new_empty(batch, heads, rows, v.shape[-1])
    lse = q.new_empty(batch, heads, rows, dtype=torch.float32)
    return output, lse, q.new_empty(batch, heads, width // 2, rows, dtype=torch.float32)


def _fake_causal_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(unit_stride(q)), torch.empty_like(unit_stride(k)), torch.empty_like(unit_stride(v))


define(
    "blur",
    f"(Tensor x, Tensor seed, Tensor? gate, Tensor? visible, {SIGMA}, bool transposed) -> Tensor",
    _blur,
    _fake_blur,
)
differentiate("blur", _blur_backward, _keep_blur)
register(
    Operator(
        "causal_blurred_attention",
        ("q", "k", "v"),
        f"Tensor? visible_keys, Tensor seed, Tensor? gate, {SIGMA}, float scale",
        ("output", "lse", "weights"),
        _causal,
        _causal_backward,
        _empty_causal,
        _fake_causal_backward,
    )
)
