"""The base of comparators whose attention is built otherwise, in training and in evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .comparator import Comparator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn


@dataclass(frozen=True)
class OtherAttention(Comparator):
    """Replaces the softmax of every block's attention by `weigh`. Blocks keep their parameters and may get new ones."""

    group = "structure"
    perturbs = "nothing: the attention is replaced"
    training_only = False
    kernel = "in memory"

    def weigh(self, logits: Tensor, learned: Mapping[str, Tensor], prefix: int) -> Tensor:
        """Weights for logits, both [batch, heads, tokens, tokens]. The first `prefix` tokens are no patches."""
        raise NotImplementedError

    def learned(self, heads: int) -> dict[str, Tensor]:
        """The first values of new parameters of one attention, by name."""
        return {}

    def build(self, model: nn.Module) -> None:
        """Exchange the attention of every block."""
        from .built_attention import exchange_attention

        exchange_attention(model, self)


@dataclass(frozen=True)
class SparseAttention(Comparator):
    """Hides keys from queries by their places, in every block. The attention itself stays as it is."""

    group = "structure"
    perturbs = "nothing: the attention is replaced"
    training_only = False
    kernel = "as in the model, with a mask"

    def visible(self, tokens: int, prefix: int) -> Tensor:
        """[tokens, tokens], True where a query (row) sees a key. The first `prefix` tokens are no patches."""
        raise NotImplementedError

    def build(self, model: nn.Module) -> None:
        """Give the attention of every block its mask."""
        from .built_attention import mask_attention

        mask_attention(model, self)
