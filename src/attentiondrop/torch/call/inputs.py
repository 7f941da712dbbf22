"""Bring whatever `scaled_dot_product_attention` accepts into one form: [B, H, N, D] with broadcastable masks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ShapeError, bad_argument
from ...specs import Spec
from .leaves import LogitShape


class Options(NamedTuple):
    """The arguments of `attention` that say what is computed, apart from the tensors and the spec."""

    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    #: How many keys before and behind its own place a row sees, -1 for all.
    window: tuple[int, int] | None = None
    #: A `Blocks`, or a BlockMask of flex_attention.
    blocks: Any = None


class Inputs(NamedTuple):
    """Queries [B, H, N, D], keys [B, Hk, M, D], values [B, Hk, M, E], and what hides or shifts logits.

    `mask` is a boolean or additive mask and `bias` an additive one that hides nothing, each None or broadcastable to
    [B, H, N, M]. `lead` is the shape before [N, D] that the caller's tensors had, `shape` that of the logits, whether
    they are ever built or not. Logits, kernels and probabilities have `compute_dtype`: float32 or wider.

    (Fields, and no properties: torch 2.10 cannot compile properties of a NamedTuple.)
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float
    lead: tuple[int, ...]
    shape: LogitShape
    compute_dtype: torch.dtype

    def restore(self, output: Tensor) -> Tensor:
        """Give an output [B, H, N, E] the leading shape of the caller's queries."""
        return output if len(self.lead) == 2 else output.reshape(*self.lead, *output.shape[-2:])


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, Hk, M, D] with each head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def unit_stride(x: Tensor) -> Tensor:
    """`x` as kernels read it: neighbours along the last dimension are neighbours in memory.

    Where they are along another dimension, too (windows of `unfold`), that dimension may come last in `empty_like`.
    """
    *others, last = x.stride()
    return x if last == 1 and 1 not in others else x.contiguous()


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """`x` with the strides of `like`: the strides that the fake version of an operator promised to the compiler."""
    return x if x.stride() == like.stride() else torch.empty_like(like, device=x.device).copy_(x)


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse what is not a floating-point tensor of at least two dimensions."""
    for name, x in (("query", q), ("key", k), ("value", v)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise bad_argument(name, "a floating-point tensor", x.dtype if isinstance(x, Tensor) else type(x).__name__)
        if x.ndim < 2:
            raise ShapeError(
                f"{name}: expected at least 2 dimensions [..., length, head size], received {list(x.shape)}"
            )


def check_sinks(sinks: Tensor | None, heads: int) -> None:
    """Refuse what is not a tensor with one logit for each head."""
    if sinks is None:
        return
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        received = sinks.dtype if isinstance(sinks, Tensor) else type(sinks).__name__
        raise bad_argument("sinks", "a floating-point tensor", received)
    if sinks.numel() != heads:
        raise bad_argument("sinks", f"a logit for each of {heads} heads", list(sinks.shape))


def refuse_nested(query: Tensor, spec: Spec) -> None:
    """Refuse sequences of several lengths in one tensor, unless `spec` only scales whole heads, which needs no rows."""
    if query.is_nested and any(leaf.level != "heads" for leaf in spec.leaves()):
        wanted = f"padded sequences with a mask for {spec} (torch.nested.to_padded_tensor makes them)"
        raise bad_argument("query", wanted, "a nested tensor")


def normalise(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Inputs:
    """Check that shapes and dtypes belong together, and bring everything into four dimensions.

    Heads are dimension -3, as for SDPA; tensors of fewer than four dimensions have one head.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise bad_argument("key, value", f"the dtype of query, {q.dtype}", f"{k.dtype}, {v.dtype}")
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if q_shape[-1] != k_shape[-1]:
        raise ShapeError(f"query and key need the same head size, received {_shapes(q, k, v)}")
    if k_shape[-2] != v_shape[-2]:
        raise ShapeError(f"key and value need the same length, received {_shapes(q, k, v)}")
    scale = q_shape[-1] ** -0.5 if options.scale is None else options.scale

    if len(q_shape) == len(k_shape) == len(v_shape) == 4 and q_shape[:2] == k_shape[:2] == v_shape[:2]:
        lead = tuple(q_shape[:2])
    else:
        q, k, v, lead = _broadcast(q, k, v, options.enable_gqa)
    mask, bias = options.attn_mask, options.bias
    if mask is not None or bias is not None:
        target = (*lead, q.shape[-2], k.shape[-2])
        mask = mask_in_four_dimensions(mask, target, "attn_mask")
        bias = mask_in_four_dimensions(bias, target, "bias")
    shape = LogitShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return Inputs(q, k, v, mask, bias, scale, lead, shape, torch.float64 if q.dtype == torch.float64 else torch.float32)


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"query {list(q.shape)}, key {list(k.shape)}, value {list(v.shape)}"


def _broadcast(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """Expand batch (and head) dimensions to their common shape and flatten them to [B, H]."""
    shapes = _shapes(q, k, v)
    if not q.ndim == k.ndim == v.ndim:
        raise ShapeError(f"query, key and value need the same number of dimensions, received {shapes}")
    headless = q.ndim < 4
    if headless:
        q, k, v = q.unsqueeze(-3), k.unsqueeze(-3), v.unsqueeze(-3)
    try:
        batch = tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
    except RuntimeError:
        raise ShapeError(f"batch dimensions do not belong together: {shapes}") from None
    heads = [q.shape[-3], k.shape[-3], v.shape[-3]]
    if enable_gqa and len(set(heads)) > 1:
        if heads[0] % heads[1] or heads[1] != heads[2]:
            raise ShapeError(f"enable_gqa needs query heads that are a multiple of the key and value heads: {shapes}")
    elif len({count for count in heads if count != 1}) > 1:
        raise ShapeError(f"heads differ (enable_gqa=True for grouped queries): {shapes}")
    else:
        heads = [max(heads)] * 3
    flat = math.prod(batch)
    q, k, v = (
        x.expand(*batch, count, *x.shape[-2:]).reshape(flat, count, *x.shape[-2:])
        for x, count in zip((q, k, v), heads, strict=True)
    )
    return q, k, v, batch if headless else (*batch, heads[0])


def mask_in_four_dimensions(mask: Tensor | None, target: tuple[int, ...], name: str) -> Tensor | None:
    """A mask that broadcasts against `target` (lead, N, M) as one that broadcasts against [B, H, N, M]."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        received = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_argument(name, "a boolean or floating-point tensor", received)
    fits = mask.ndim <= len(target) and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(target), strict=False)
    )
    if not fits:
        raise ShapeError(f"{name}: expected a shape that broadcasts to {list(target)}, received {list(mask.shape)}")
    missing = len(target) - mask.ndim
    mask = mask[(None,) * missing]
    # The keys are expanded (a view, which costs nothing), because masks are sliced along them. The rows are not: a
    # single row says that all rows see the same keys, and faster paths need to know that.
    mask = mask.expand(*mask.shape[:-1], target[-1])
    if len(target) == 4:
        return mask
    if len(target) < 4:
        # [N, M] or [B, N, M]: there is one head, and perhaps no batch.
        return mask[None, None] if len(target) == 2 else mask[:, None]
    batch, rest = target[:-3], mask.shape[-3:]
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.reshape(1, *rest)
    return mask.expand(*batch, *rest).reshape(math.prod(batch), *rest)
