"""LayerDrop: whole blocks are skipped in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comparator import Dropping

if TYPE_CHECKING:
    from torch import Tensor, nn


class SkipBlock:
    """A forward hook: with probability p the output of the block is its input, for the whole batch. No rescaling.

    The choice is a tensor, so that a captured step draws it anew in each replay.
    """

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, block: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """The output, or the input."""
        if not block.training or self.p == 0:
            return output
        kept = output.new_empty((), dtype=output.dtype).bernoulli_(1 - self.p).bool()
        return output.where(kept, args[0])


@dataclass(frozen=True)
class LayerDrop(Dropping):
    """Every pass skips each block with probability p, for the whole batch. Kept blocks are not rescaled."""

    p: float = 0.2
    name = "layerdrop"
    group = "hidden"
    grid = [{"p": p} for p in (0.2, 0.05, 0.1, 0.3, 0.4, 0.5)]
    perturbs = "blocks, for the whole batch"
    draws_per_batch = True
    formula = "block(x) with probability 1 - p, else x"
    reference = "Fan et al. 2020, Reducing Transformer Depth on Demand with Structured Dropout"

    def change(self, model: nn.Module) -> None:
        """Hook every block."""
        from ..vit_places import blocks_of

        for block in blocks_of(model, self.name):
            block.register_forward_hook(SkipBlock(self.p))
            block.block_drop = self.p  # type: ignore[assignment]  # a consistency loss looks for such rates
