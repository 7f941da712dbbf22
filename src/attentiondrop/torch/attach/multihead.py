"""`nn.MultiheadAttention` and `F.multi_head_attention_forward` with perturbed attention.

The function is rewritten here on top of `perturbed_attention`. torch has no hook between its logits and its softmax, a
function mode does not see the attention inside, and neither does a compiled graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import BackendError, ShapeError
from ..call.inputs import Options
from ..call.visibility import split
from .attend import attend
from .sites import ATTRIBUTE, WAYS, Site, Way


def members(base: type[nn.Module]) -> dict[str, Any]:
    """A forward that perturbs in training; in evaluation it calls the forward of `base`."""

    def forward(
        self: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self.training:
            result: tuple[Tensor, Tensor | None] = base.forward(
                self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return result
        return perturbed_multi_head(
            getattr(self, ATTRIBUTE),
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            batch_first=self.batch_first,
        )

    return {"forward": forward}


def perturbed_multi_head(
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward` with perturbed attention; after `site` it takes the same arguments."""
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    # Exactly as in torch: is_causal is a hint about attn_mask, used only if nothing else needs the mask.
    causal = is_causal and key_padding_mask is None and not need_weights
    attn_mask = None if causal else attn_mask
    batched = query.dim() == 3
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _project(query, key, value, in_proj_weight, in_proj_bias, separate)
    if not batched:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    elif not batch_first:
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    _check_shapes(q, k, v, key_padding_mask, attn_mask, num_heads, batched)
    mask = join_masks(key_padding_mask, attn_mask, query, num_heads)
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(k.shape[0], -1, -1)], dim=1)
        v = torch.cat([v, bias_v.expand(v.shape[0], -1, -1)], dim=1)
        mask = _with_visible_key(mask)
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    k = k if static_k is None else static_k.unflatten(0, (-1, num_heads))
    v = v if static_v is None else static_v.unflatten(0, (-1, num_heads))
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = _with_visible_key(mask)
    backend = site.backend
    if need_weights and backend == "fused":
        raise no_weights(site, "need_weights=False")
    backend = "eager" if need_weights else backend
    options = Options(mask, dropout_p if training else 0.0, causal)
    attended = attend(site, q, k, v, site.drop, options, backend, site.monitor)
    output = F.linear(attended.output.transpose(1, 2).flatten(-2), out_proj_weight, out_proj_bias)
    if not batched:
        output = output.squeeze(0)
    elif not batch_first:
        output = output.transpose(0, 1)
    if not need_weights or attended.weights is None:
        return output, None
    weights = attended.weights.to(output.dtype)
    weights = weights.mean(dim=1) if average_attn_weights else weights
    return output, weights if batched else weights.squeeze(0)


def no_weights(site: Site, instead: str) -> BackendError:
    """The error where `backend="fused"` is asked for the weights. `instead`: what to call the module with."""
    return BackendError(
        f'{site.name or "the model"}: backend="fused" cannot run here: the attention weights are asked for, which '
        f'fused paths never build. Pass {instead}. If the call is not yours, attach with "auto", '
        f"or leave this module out: {{{site.name!r}: None, '*': spec}}"
    )


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, ...] | None,
) -> tuple[Tensor, ...]:
    """Queries, keys and values after the input projections, in one product if inputs and weights allow it."""
    if separate is None and packed is not None:
        if query is key and key is value:
            return F.linear(query, packed, bias).chunk(3, dim=-1)
        separate = packed.chunk(3)
    weights = [weight for weight in separate or () if weight is not None]
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, attn_mask: Tensor | None, heads: int, batched: bool
) -> None:
    """Refuse what torch refuses: it broadcasts neither batches nor masks. Queries are [batch, tokens, size] here."""
    batch, rows, keys = q.shape[0], q.shape[1], k.shape[1]
    for name, x in (("key", k), ("value", v)):
        if x.shape[0] != batch:
            raise ShapeError(f"{name}: expected the batch of the query, {batch}, received {x.shape[0]}")
    if padding is not None and padding.shape != ((batch, keys) if batched else (keys,)):
        expected = [batch, keys] if batched else [keys]
        raise ShapeError(f"key_padding_mask: expected the shape {expected}, received {list(padding.shape)}")
    if attn_mask is not None and attn_mask.shape not in ((rows, keys), (batch * heads, rows, keys)):
        raise ShapeError(
            f"attn_mask: expected the shape {[rows, keys]} or {[batch * heads, rows, keys]} (batch * heads, queries, "
            f"keys), received {list(attn_mask.shape)}"
        )


def _with_visible_key(mask: Tensor | None) -> Tensor | None:
    """The mask with one more key that every row sees, for `add_bias_kv` and `add_zero_attn`."""
    return None if mask is None else F.pad(mask, (0, 1), value=mask.dtype == torch.bool)


def join_masks(padding: Tensor | None, attn_mask: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """Join the two masks of torch (True: hidden) to one mask of SDPA (True: visible), without expanding them."""
    if padding is not None:
        padding = _visible(padding if padding.dim() == 2 else padding.unsqueeze(0))[:, None, None, :]
    if attn_mask is not None:
        attn_mask = _visible(attn_mask)
        # [N, M], or [B * H, N, M], or [H, N, M] for an unbatched query.
        attn_mask = attn_mask.unflatten(0, (-1, heads)) if attn_mask.dim() == 3 else attn_mask[None, None]
    if padding is None or attn_mask is None:
        return attn_mask if padding is None else padding
    if padding.dtype == torch.bool and attn_mask.dtype == torch.bool:
        return padding & attn_mask
    # In 16 bits a sum would be rounded or overflow, so it is float32 or wider. Hidden keys become -inf first: some
    # libraries write the lowest value of a dtype instead, which is not the lowest value of the wider dtype.
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _additive(padding, dtype) + _additive(attn_mask, dtype)


def _visible(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    visible, bias = split(mask)
    if visible is None:
        return mask
    if bias is None:
        bias = torch.zeros(mask.shape, device=mask.device)
    return bias.to(dtype).masked_fill(~visible, -torch.inf)


WAYS["multihead"] = Way(members)
