"""The rates of the last calls of a site, by the seeds of the calls.

Adaptive rates move after every call. Activation checkpointing computes a call again in the backward and needs the rates
that the call had. Checkpointing restores the generator, so the recomputation draws the same seed, and the rates are
found by the seed. Everything stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import AttachError, warn_once
from ..call.stopping import stop_unless
from .lasting import lasting

#: How many calls of one site are remembered: many more than training makes before a backward.
LENGTH = 1024

_UNKNOWN = (
    ": a call that is computed again in the backward (activation checkpointing) is not among the last "
    f"{LENGTH} of its site, or several calls with other rates drew its seed: run the backward earlier, keep the "
    "generator's state (preserve_rng_state=True), and seed once"
)


def warn_of_transform(what: str) -> None:
    """Warn once that something keeps its value, since the function that calls its site is transformed."""
    warn_once(
        f"transformed {what}",
        f"{what} is not measured inside of torch.func (grad, vmap, ...), where nothing can be kept, so it stays as it "
        "is: use loss.backward() to move it",
        "torch",
    )


class Recent:
    """Seeds of the last calls, and the rates that each was made with: one tensor [LENGTH, ...] for each rate.

    `owner` is named in errors.
    """

    def __init__(self, owner: str = "EntropyTarget") -> None:
        self.unknown = owner + _UNKNOWN
        self.seeds: Tensor | None = None
        #: How many calls there were. A tensor, since torch.compile would recompile for a Python number that changes.
        self.calls: Tensor | None = None
        self.rates: list[Tensor] = []

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return [tensor for tensor in (self.seeds, self.calls, *self.rates) if tensor is not None]

    def add(self, seed: Tensor, rates: list[Tensor], new: Tensor | None = None) -> None:
        """Store a call. If `new` is False, the next call overwrites its slot."""
        seeds, calls = self._tensors(seed, rates)
        slot = (calls % LENGTH).view(1)
        seeds.index_copy_(0, slot, seed.view(1))
        for kept, rate in zip(self.rates, rates, strict=True):
            kept.index_copy_(0, slot, rate.detach().unsqueeze(0))
        calls += 1 if new is None else new

    def has(self, seed: Tensor, rates: list[Tensor]) -> Tensor:
        """Whether a call with this seed was stored, as a tensor. `rates` give shape and device of the storage."""
        return (self._tensors(seed, rates)[0] == seed).any()

    def rates_of(self, seed: Tensor) -> list[Tensor]:
        """The rates of the call with this seed; without such a call the values mean nothing."""
        return [found for found, _ in self._bounds(seed)]

    def surely_rates_of(self, seed: Tensor) -> list[Tensor]:
        """The rates of the call with this seed, or an error. Does not wait for a GPU: the error then comes later."""
        bounds = self._bounds(seed)
        if not bounds:
            raise AttachError(self.unknown)
        # No such call: -inf and inf, which differ. A call from before the rate changed its shape: NaN, never equal.
        known = torch.stack([(largest == least).all() for largest, least in bounds]).all()
        if known.device.type != "cpu":
            stop_unless(known, self.unknown)
        elif not bool(known):
            raise AttachError(self.unknown)
        return [largest for largest, _ in bounds]

    def _bounds(self, seed: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each rate, the largest and the smallest value that was stored with this seed."""
        if self.seeds is None or self.seeds.device != seed.device:
            return []
        same = self.seeds == seed
        found = []
        for kept in self.rates:
            at = same.view(-1, *[1] * (kept.ndim - 1))
            found.append((kept.where(at, -torch.inf).amax(dim=0), kept.where(at, torch.inf).amin(dim=0)))
        return found

    def _tensors(self, seed: Tensor, rates: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Seeds and number of calls; new tensors if the device, or shape and dtype of the rates, changed."""
        seeds, calls = self.seeds, self.calls
        with lasting():
            if seeds is None or calls is None or seeds.device != seed.device:
                seeds = self.seeds = torch.full((LENGTH,), -1, dtype=torch.int64, device=seed.device)
                calls = self.calls = torch.zeros((), dtype=torch.int64, device=seed.device)
                self.rates = []
            kinds = [(rate.shape, rate.dtype, rate.device) for rate in rates]
            if kinds != [(kept.shape[1:], kept.dtype, kept.device) for kept in self.rates]:
                self.rates = [rate.new_full((LENGTH, *rate.shape), torch.nan) for rate in rates]
        return seeds, calls
