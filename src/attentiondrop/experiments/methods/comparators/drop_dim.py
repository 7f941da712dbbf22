"""DropDim: dimensions of the attention's input are dropped in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....validation import one_of
from ..comparator import Dropping

if TYPE_CHECKING:
    from torch import Tensor, nn


class DropDimensions:
    """A forward hook before the attention: some dimensions are 0 in all tokens of a sample, the others are rescaled."""

    def __init__(self, p: float, kind: str) -> None:
        self.p, self.kind = p, kind

    def __call__(self, attention: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The input without the dropped dimensions."""
        if not attention.training or self.p == 0:
            return None
        x = args[0]
        return (x * self.kept(x), *args[1:])

    def kept(self, x: Tensor) -> Tensor:
        """[batch, 1, dimensions]: 0 for what is dropped, and what keeps the expectation for the others."""
        import torch

        batch, dimensions = x.shape[0], x.shape[-1]
        if self.kind == "random":
            kept = torch.empty(batch, 1, dimensions, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
            return kept / (1 - self.p) if self.p < 1 else kept
        length = round(self.p * dimensions)
        # A span may begin anywhere and goes on at the other end, so that every dimension is as likely to be dropped.
        start = torch.randint(dimensions, (batch, 1, 1), device=x.device)
        offset = (torch.arange(dimensions, device=x.device) - start) % dimensions
        return (offset >= length).to(x.dtype) * (dimensions / max(dimensions - length, 1))


@dataclass(frozen=True)
class DropDim(Dropping):
    """Drops dimensions of the input of the attention, the same in all tokens: random ones, or a span of them."""

    p: float = 0.1
    kind: str = "random"
    name = "dropdim"
    group = "hidden"
    grid = [
        {"p": p, "kind": kind}
        for p, kind in (
            (0.1, "random"),
            (0.1, "span"),
            (0.05, "random"),
            (0.2, "random"),
            (0.2, "span"),
            (0.3, "random"),
        )
    ]
    perturbs = "dimensions of the attention's input, for each sample"
    formula = "x * m / E(m), m in {0, 1}^d is the same for all tokens, a share p of m is 0 (random, or one span)"
    reference = "Zhang et al. 2022, DropDim"

    def _check(self) -> None:
        super()._check()
        one_of("kind", self.kind, ("random", "span"))

    def change(self, model: nn.Module) -> None:
        """Hook the attention of every block."""
        from ..vit_places import attentions_of

        for attention in attentions_of(model, self.name):
            attention.register_forward_pre_hook(DropDimensions(self.p, self.kind))
            attention.dimension_drop = self.p  # type: ignore[assignment]  # a consistency loss looks for such rates
