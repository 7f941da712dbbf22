"""BranchDrop: whole sublayers are cut in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comparator import Dropping

if TYPE_CHECKING:
    from torch import Tensor, nn


class CutBranch:
    """A forward hook: the output of a sublayer is 0 with probability p, else divided by 1 - p, for the whole batch."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, sublayer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """The output, cut or rescaled."""
        if not sublayer.training or self.p == 0:
            return output
        kept = output.new_empty(()).bernoulli_(1 - self.p)
        return output * (kept / (1 - self.p) if self.p < 1 else kept)


@dataclass(frozen=True)
class BranchDrop(Dropping):
    """Every pass cuts each attention and MLP with probability p, for the whole batch; the expectation stays."""

    p: float = 0.2
    name = "branchdrop"
    group = "hidden"
    grid = [{"p": p} for p in (0.2, 0.05, 0.1, 0.3, 0.4, 0.5)]
    perturbs = "sublayers (attention, MLP), for the whole batch"
    draws_per_batch = True
    formula = "x + f(x) * Bernoulli(1 - p) / (1 - p), one draw for each sublayer"
    reference = "Fan et al. 2020, Multi-branch Attentive Transformer (drop-branch), here with the sublayers as branches"

    def change(self, model: nn.Module) -> None:
        """Hook the attention and the MLP of every block."""
        from ..vit_places import sublayers_of

        for sublayer in sublayers_of(model, self.name):
            sublayer.register_forward_hook(CutBranch(self.p))
            sublayer.branch_drop = self.p  # type: ignore[assignment]  # a consistency loss looks for such rates
