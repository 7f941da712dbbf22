"""LSH attention, by transformers' Reformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....errors import ArgumentError
from ....validation import integer
from ..comparator import Comparator

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LSH(Comparator):
    """Queries, which are the keys too, are sorted into hash buckets; each attends to its chunk and its neighbours."""

    chunk: int = 4
    hashes: int = 4
    name = "lsh"
    group = "structure"
    grid = [{"chunk": chunk, "hashes": hashes} for chunk, hashes in ((4, 4), (4, 1), (4, 2), (4, 8), (2, 4), (8, 4))]
    perturbs = "nothing: the attention is replaced"
    formula = (
        "keys are sorted by hash and cut into chunks; a query attends to its chunk and the chunks before and after; "
        "Q = K; averaged over hashes"
    )
    reference = "Kitaev et al. 2020, Reformer"
    training_only = False
    kernel = "in memory, by chunks"
    not_captured = "Python code reads whether tokens are masked"

    def _check(self) -> None:
        integer("chunk", self.chunk, minimum=1)
        integer("hashes", self.hashes, minimum=1)

    def build(self, model: nn.Module) -> None:
        """Put Reformer's attention into every block."""
        from ..vit_places import attentions_of, blocks_of

        try:
            from ..lsh_layers import LSHAttention
        except ModuleNotFoundError as error:
            raise ArgumentError(f"{self.name}: expected the package {error.name}, which is not installed") from None
        for block, attention in zip(blocks_of(model, self.name), attentions_of(model, self.name), strict=True):
            block.attn = LSHAttention(attention, self.chunk, self.hashes)
