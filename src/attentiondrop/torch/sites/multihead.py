"""`nn.MultiheadAttention`, which hides its inner attention from everything that could intercept it.

Its training forward is written again here on top of `perturbed_attention`: torch offers no hook between the logits and
the softmax, and `F.multi_head_attention_forward` is opaque to function modes and to the compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import Options
from ..visibility import split
from .base import ATTRIBUTE, KINDS, Kind, Site
from .stacked import attend


def members(base: type[nn.Module]) -> dict[str, Any]:
    """The forward of `nn.MultiheadAttention` in training; everything else stays."""

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
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        mask = join_masks(key_padding_mask, attn_mask, query, self.num_heads)
        # As in torch, to the letter: is_causal is a hint about attn_mask, taken only where nothing else needs the mask.
        causal = is_causal and key_padding_mask is None and not need_weights
        return _forward(self, query, key, value, None if causal else mask, causal, need_weights, average_attn_weights)

    return {"forward": forward}


def _forward(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    average_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    site: Site = getattr(module, ATTRIBUTE)
    batched = query.dim() == 3
    q, k, v = _project(module, query, key, value)
    if not batched:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    elif not module.batch_first:
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    k, v, mask = _extra_keys(module, k, v, mask)
    q, k, v = (x.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2) for x in (q, k, v))
    backend = "eager" if need_weights and site.backend == "auto" else site.backend
    attended = attend(site, q, k, v, site.drop, Options(mask, module.dropout, is_causal), backend, site.monitor)
    output = attended.output.transpose(1, 2).flatten(-2)
    output = F.linear(output, module.out_proj.weight, module.out_proj.bias)
    if not batched:
        output = output.squeeze(0)
    elif not module.batch_first:
        output = output.transpose(0, 1)
    if not need_weights or attended.weights is None:
        return output, None
    weights = attended.weights.to(output.dtype)
    weights = weights.mean(dim=1) if average_weights else weights
    return output, weights if batched else weights.squeeze(0)


def _project(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values after the input projections, in one product where the module allows it."""
    bias = module.in_proj_bias
    # Declared as a tensor, but None where keys or values have a size of their own.
    packed: Tensor | None = module.in_proj_weight
    if packed is not None:
        if query is key and key is value:
            return F.linear(query, packed, bias).chunk(3, dim=-1)
        weights = packed.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


def _extra_keys(
    module: nn.MultiheadAttention, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Append what `add_bias_kv` and `add_zero_attn` ask for: keys that every row sees."""
    extra = 0
    if module.bias_k is not None and module.bias_v is not None:
        k = torch.cat([k, module.bias_k.expand(k.shape[0], -1, -1)], dim=1)
        v = torch.cat([v, module.bias_v.expand(v.shape[0], -1, -1)], dim=1)
        extra += 1
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        extra += 1
    if mask is not None and extra:
        mask = F.pad(mask, (0, extra), value=mask.dtype == torch.bool)
    return k, v, mask


def join_masks(padding: Tensor | None, attn_mask: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """torch's two masks (True: hidden) as one of SDPA's (True: visible), kept as compact as they came."""
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
    # Wider than 16 bits, where a sum would be rounded or overflow. What is hidden becomes -inf first: some libraries
    # write the lowest value of a dtype for it, which is not the lowest of another.
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


KINDS["multihead"] = Kind(members)
