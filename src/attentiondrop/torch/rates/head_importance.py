"""How important each head of a site is for the loss, for `HeadMask(choice="important")`. Measured in the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import bad_argument
from ...specs import HeadMask, Spec
from ..call.leaves import places
from ..draws import runs_in_backward
from .recent_calls import Recent

#: The weight of the past in the running means.
DECAY = 0.99


class HeadImportance:
    """The running means of one `HeadMask` of one site, [H], zero before the first backward.

    The importance of a head in one call is |gradient x output|: the product is summed over positions and features of a
    sample, which is the derivative of the loss by a factor on this head, and its size is averaged over the samples. A
    masked head has such a derivative, too.
    """

    def __init__(self) -> None:
        #: None until the first call tells the number of heads.
        self.means: Tensor | None = None
        #: The means of the last calls, which recomputation needs.
        self.recent = Recent("HeadMask")
        #: Autograd calls `_Watch.backward` only if something before it needs a gradient. This does; it never gets one.
        self.anchor = torch.zeros((), requires_grad=True)

    def of_call(self, seed: Tensor, heads: int) -> Tensor:
        """The means [H] by which the call with this seed ranks its heads.

        Means change in the backward. A call that activation checkpointing computes again in the backward gets the means
        of the first time. Compiled code cannot ask whether it runs in a backward: it looks for the seed.
        """
        if seed.is_meta:
            return torch.zeros(heads, device="meta")
        means = self._tensor(heads, seed.device)
        if not torch.compiler.is_compiling():
            if runs_in_backward():
                return self.recent.surely_rates_of(seed)[0]
            self.recent.add(seed, [means])
            return means
        new = ~self.recent.has(seed, [means])
        used = torch.where(new, means, self.recent.rates_of(seed)[0])
        self.recent.add(seed, [used], new)
        return used

    def watched(self, factors: Tensor) -> Tensor:
        """The factors [B, H] on the outputs of heads. Their gradient moves the means."""
        if self.means is None or not torch.is_grad_enabled() or factors.is_meta:
            return factors
        result: Tensor = _Watch.apply(self.anchor, factors, self.means)  # type: ignore[no-untyped-call]
        return result

    def tensors(self) -> list[Tensor]:
        """What calls read and change."""
        return ([] if self.means is None else [self.means]) + self.recent.tensors()

    def load(self, means: Tensor | None) -> None:
        """Take over stored means, in the same tensor if there is one: a captured graph reads it. None stands for 0."""
        if self.means is None:
            self.means = None if means is None else means.detach().clone().float()
        elif means is None:
            self.means.zero_()
        elif means.shape != self.means.shape:
            raise bad_argument("state", f"the importance of {len(self.means)} heads", f"that of {len(means)}")
        else:
            self.means.copy_(means)

    def _tensor(self, heads: int, device: torch.device) -> Tensor:
        if self.means is None:
            self.means = torch.zeros(heads, device=device)
        elif len(self.means) != heads:
            raise bad_argument("state", f"the importance of {heads} heads", f"that of {len(self.means)}")
        elif self.means.device != device:  # the model has moved
            self.means = self.means.to(device)
        return self.means


class _Watch(torch.autograd.Function):
    """The identity for `factors`. Its backward takes their gradient into the running means, and passes nothing on."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, factors: Tensor, means: Tensor) -> Tensor:
        """The factors."""
        # Not `save_for_backward`, which would refuse means that have changed since.
        ctx.means = means
        return factors.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # type: ignore[override]
        """Move the means. A gradient that overflowed, as with a gradient scaler, counts for nothing."""
        means = ctx.means
        found = gradient.detach().abs().mean(dim=0).to(means.dtype)
        found = torch.where(found.isfinite(), found, means)
        means.lerp_(found, 1.0 - DECAY)
        return None, None, None


def importances_of(spec: Spec) -> dict[int, HeadImportance]:
    """A `HeadImportance` for each regulariser of the spec that needs one, by its number."""
    return {
        number: HeadImportance()
        for number, leaf, _ in places(spec)
        if isinstance(leaf, HeadMask) and leaf.choice == "important"
    }
