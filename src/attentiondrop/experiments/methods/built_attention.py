"""timm's attention with another softmax, or with a fixed mask. Used by comparators that build attention otherwise."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ...errors import ArgumentError
from .vit_places import attentions_of, prefix_tokens

if TYPE_CHECKING:
    from .other_attention import OtherAttention, SparseAttention


class WeighedAttention(Attention):  # type: ignore[misc]
    """timm's `Attention` with the weights of an `OtherAttention`."""

    method: OtherAttention
    learned: nn.ParameterDict
    prefix: int

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """As timm computes it without its fused kernel, but for the softmax."""
        if attn_mask is not None or is_causal:
            raise ArgumentError(f"{self.method.name}: expected attention without a mask")
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        logits = (query @ key.transpose(-2, -1)) * self.scale
        weights = self.method.weigh(logits.float(), dict(self.learned.items()), self.prefix).to(value.dtype)
        out = (self.attn_drop(weights) @ value).transpose(1, 2).reshape(batch, tokens, -1)
        found: Tensor = self.proj_drop(self.proj(self.norm(out)))
        return found


class MaskedAttention(Attention):  # type: ignore[misc]
    """timm's `Attention` with the mask of a `SparseAttention`."""

    method: SparseAttention
    prefix: int

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """timm's own forward, with the mask."""
        if attn_mask is not None or is_causal:
            raise ArgumentError(f"{self.method.name}: expected attention without a mask")
        found: Tensor = super().forward(x, attn_mask=_mask(self.method, x.shape[1], self.prefix, x.device))
        return found


def exchange_attention(model: nn.Module, method: OtherAttention) -> None:
    """Let every block of `model` attend by `method`. Parameters and their names stay; new ones may come."""
    for module in _plain_attention(model, method.name):
        module.__class__ = WeighedAttention
        device = module.qkv.weight.device
        new = {name: nn.Parameter(value.to(device)) for name, value in method.learned(module.num_heads).items()}
        module.method, module.learned, module.prefix = method, nn.ParameterDict(new), prefix_tokens(model)


def mask_attention(model: nn.Module, method: SparseAttention) -> None:
    """Let every block of `model` see only what `method` leaves visible."""
    for module in _plain_attention(model, method.name):
        module.__class__ = MaskedAttention
        module.method, module.prefix = method, prefix_tokens(model)


def weighed_attentions(model: nn.Module) -> list[WeighedAttention]:
    """Those that `exchange_attention` has made, in order."""
    return [module for module in model.modules() if isinstance(module, WeighedAttention)]


def _plain_attention(model: nn.Module, who: str) -> list[Any]:
    found = attentions_of(model, who)
    for module in found:
        # Only the exact class: a subclass may compute something else.
        if type(module) is not Attention or getattr(module, "gate", None) is not None:
            raise ArgumentError(
                f"{who}: expected timm's Attention without a gate in every block, received {type(module).__name__}"
            )
    return found


@lru_cache(maxsize=16)
def _mask(method: SparseAttention, tokens: int, prefix: int, device: torch.device) -> Tensor:
    return method.visible(tokens, prefix).to(device)
