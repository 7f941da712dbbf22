"""How important each head of a site is for the loss, for `HeadMask(choice="important")`. Measured in the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import bad_argument
from ...specs import HeadMask, Spec
from ..call.leaves import places
from ..draws import runs_in_backward
from ..untouched import is_transformed
from .lasting import lasting
from .recent_calls import Recent, warn_of_transform

#: The weight of the past in the running means.
DECAY = 0.99
#: The means are kept in a tensor of this length. It is made before the first call tells the number of heads: a compiler
#: cannot make a tensor in a graph and change it in the backward of that graph.
MOST_HEADS = 1024


class HeadImportance:
    """The running means of one `HeadMask` of one site, [H], zero before the first backward.

    The importance of a head in one call is |gradient x output|: the product is summed over positions and features of a
    sample, which is the derivative of the loss by a factor on this head, and its size is averaged over the samples. The
    output of a masked head is 0, and so is its importance: its mean falls until another head is masked in its place.
    """

    #: Whether the means stay as they are.
    fixed = False

    def __init__(self, device: torch.device) -> None:
        self.room = torch.zeros(MOST_HEADS, device=device)
        #: None until the first call.
        self.heads: int | None = None
        #: The means of the last calls, which recomputation needs.
        self.recent = Recent("HeadMask")
        #: Autograd calls `_Watch.backward` only if something before it needs a gradient. This does; it never gets one.
        self.anchor = torch.zeros((), device="cpu", requires_grad=True)

    @property
    def means(self) -> Tensor | None:
        """The means of the heads; None before the first call."""
        return None if self.heads is None else self.room[: self.heads]

    def of_call(self, seed: Tensor, heads: int) -> Tensor:
        """The means [H] by which the call with this seed ranks its heads.

        Means change in the backward. A call that activation checkpointing computes again in the backward gets the means
        of the first time. Compiled code cannot ask whether it runs in a backward: it looks for the seed.
        """
        if seed.is_meta:
            return torch.zeros(heads, device="meta")
        self._check(heads)
        self.to(seed.device)
        self.heads, means = heads, self.room[:heads]
        if self.fixed:
            return means
        if is_transformed():
            warn_of_transform("The importance of heads (HeadMask)")
            return means
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
        if self.fixed or not torch.is_grad_enabled() or factors.is_meta or is_transformed():
            return factors
        result: Tensor = _Watch.apply(self.anchor, factors, self.room)
        return result

    def to(self, device: torch.device) -> None:
        """Follow the model to its device."""
        if self.room.device != device:
            with lasting():
                self.room = self.room.to(device)

    def tensors(self) -> list[Tensor]:
        """What calls read and change."""
        return [self.room, *self.recent.tensors()]

    def load(self, means: Tensor | None) -> None:
        """Take over stored means, in the same tensor: a captured graph reads it. None stands for 0."""
        if means is None:
            self.room.zero_()
            return
        self._check(len(means))
        self.heads = len(means)
        self.room[: self.heads].copy_(means)

    def _check(self, heads: int) -> None:
        if self.heads not in (None, heads):
            raise bad_argument("state", f"the importance of {self.heads} heads", f"that of {heads}")
        if heads > MOST_HEADS:
            raise bad_argument("choice", f"'random' for more than {MOST_HEADS} heads", "important")


class _Watch(torch.autograd.Function):
    """The identity for `factors`. Its backward takes their gradient into the running means, and passes nothing on."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, factors: Tensor, room: Tensor) -> Tensor:
        """The factors."""
        # Not `save_for_backward`, which would refuse means that have changed since.
        ctx.room = room
        ctx.save_for_backward(factors)
        return factors.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Move the means. A gradient that overflowed, as with a gradient scaler, counts for nothing."""
        means, (factors,) = ctx.room[: gradient.shape[-1]], ctx.saved_tensors
        found = (gradient.detach() * factors).abs().mean(dim=0).to(means.dtype)
        found = torch.where(found.isfinite(), found, means)
        means.lerp_(found, 1.0 - DECAY)
        return None, None, None


def importances_of(spec: Spec, device: torch.device) -> dict[int, HeadImportance]:
    """A `HeadImportance` for each regulariser of the spec that needs one, by its number."""
    return {
        number: HeadImportance(device)
        for number, leaf, _ in places(spec)
        if isinstance(leaf, HeadMask) and leaf.choice == "important"
    }
