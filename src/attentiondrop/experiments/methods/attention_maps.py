"""The attention of a vision transformer in training, with gradients, for losses on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ...errors import ArgumentError
from .comparator import Acting
from .vit_places import attentions_of

#: From attention weights [batch, heads, queries, keys] to a number without dimensions.
Measure = Callable[[Tensor], Tensor]


class PenalisedAttention(Acting):
    """Adds to the loss what `measure` finds in the attention of each block: a sum over blocks, a mean over passes.

    The attention is that of the logits, before a method perturbs it.
    """

    on_tensors = ("loss",)

    def __init__(self, model: nn.Module, who: str, measure: Measure) -> None:
        if getattr(model, "grad_checkpointing", False):
            raise ArgumentError(
                f"{who}: expected model.checkpoint_activations=false: the attention that it penalises is not kept then"
            )
        self._found: list[Tensor] = []
        self._blocks = 0
        for attention in attentions_of(model, who):
            # Only the exact class: others may change queries and keys afterwards, by rotary positions for example.
            own = getattr(attention, "_attentiondrop_base", type(attention))  # before a spec was attached to it
            if own is not Attention:
                raise ArgumentError(f"{who}: expected timm's Attention, received {own.__name__}")
            keeper = _Keeper(self._found, measure)
            attention.q_norm.register_forward_hook(keeper.query)  # type: ignore[union-attr]
            attention.k_norm.register_forward_hook(keeper.key)  # type: ignore[union-attr]
            self._blocks += 1

    def loss(self, loss: Tensor) -> Tensor:
        """The loss with the penalty."""
        found = list(self._found)
        self._found.clear()
        passes = len(found) / self._blocks
        return loss + torch.stack(found).sum() / passes


class _Keeper:
    """Catches queries and keys of one attention, and measures their attention."""

    _query: Tensor | None = None

    def __init__(self, found: list[Tensor], measure: Measure) -> None:
        self._found, self._measure = found, measure

    def query(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._query = output

    def key(self, module: nn.Module, args: Any, output: Tensor) -> None:
        # Measurements during training run without gradients, and no loss follows them.
        if module.training and torch.is_grad_enabled() and self._query is not None:
            logits = (self._query @ output.transpose(-2, -1)).float() * output.shape[-1] ** -0.5
            self._found.append(self._measure(logits.softmax(-1)))
        self._query = None


def entropy(weights: Tensor) -> Tensor:
    """Of each row [..., keys], in nats."""
    # The slope of `torch.special.entr` is infinite at 0, and softmax rounds small weights to 0: gradients would be NaN.
    logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
    return -(weights * logs).sum(-1)


def distances(tokens: int, prefix: int, device: torch.device) -> Tensor:
    """[tokens, tokens]: how far apart two patches are in the sequence; 0 from and to tokens that are no patches."""
    place = torch.arange(tokens, device=device)
    apart = (place[:, None] - place).abs()
    patch = place >= prefix
    return apart * (patch[:, None] & patch)
