"""The last calls of a site, by their seeds: activation checkpointing computes a call again, and must find its rates.

Rates that adapt move after every call. A recomputation in the backward has the seed of the call, since checkpointing
restores the generator; so the seed tells with which rates the call was made. All of it stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import AttachError

#: How many calls of one site are remembered: many more than any training makes before their backward.
LENGTH = 1024

_UNKNOWN = (
    "EntropyTarget: a call that is computed again in the backward (activation checkpointing) is not among the last "
    f"{LENGTH} of its site, or several calls with other rates drew its seed: run the backward earlier, keep the "
    "generator's state (preserve_rng_state=True), and seed once"
)


class Recent:
    """Seeds of the last calls, and the rates that each was made with: one tensor [LENGTH, ...] for each rate."""

    def __init__(self) -> None:
        self.seeds: Tensor | None = None
        #: How many calls there were. (A tensor: a number that changes would be compiled anew in every call.)
        self.calls: Tensor | None = None
        self.rates: list[Tensor] = []

    def add(self, seed: Tensor, rates: list[Tensor], new: Tensor | None = None) -> None:
        """Note a call. Where `new` is False its slot stays the one for the next call."""
        seeds, calls = self._tensors(seed, rates)
        slot = (calls % LENGTH).view(1)
        seeds.index_copy_(0, slot, seed.view(1))
        for kept, rate in zip(self.rates, rates, strict=True):
            kept.index_copy_(0, slot, rate.detach().unsqueeze(0))
        calls += 1 if new is None else new

    def has(self, seed: Tensor, rates: list[Tensor]) -> Tensor:
        """Whether a call with this seed was noted, as a tensor; `rates` say what would be noted with it."""
        return (self._tensors(seed, rates)[0] == seed).any()

    def rates_of(self, seed: Tensor) -> list[Tensor]:
        """The rates of the call with this seed; anything where there is none."""
        return [found for found, _ in self._bounds(seed)]

    def surely_rates_of(self, seed: Tensor) -> list[Tensor]:
        """The same, or an error: at once on a CPU, on other devices without waiting for them."""
        bounds = self._bounds(seed)
        if not bounds:
            raise AttachError(_UNKNOWN)
        # Nothing found: -inf against inf. Not a number: noted before the rate changed its shape.
        known = torch.stack([(largest == least).all() for largest, least in bounds]).all()
        if known.device.type != "cpu":
            torch._assert_async(known, _UNKNOWN)
        elif not bool(known):
            raise AttachError(_UNKNOWN)
        return [largest for largest, _ in bounds]

    def _bounds(self, seed: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each rate the largest and the least one that was noted with this seed."""
        if self.seeds is None or self.seeds.device != seed.device:
            return []
        same = self.seeds == seed
        found = []
        for kept in self.rates:
            at = same.view(-1, *[1] * (kept.ndim - 1))
            found.append((kept.where(at, -torch.inf).amax(dim=0), kept.where(at, torch.inf).amin(dim=0)))
        return found

    def _tensors(self, seed: Tensor, rates: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The memory, made anew where the device or the rates are others."""
        if self.seeds is None or self.calls is None or self.seeds.device != seed.device:
            self.seeds = torch.full((LENGTH,), -1, dtype=torch.int64, device=seed.device)
            self.calls = torch.zeros((), dtype=torch.int64, device=seed.device)
            self.rates = []
        kinds = [(rate.shape, rate.dtype, rate.device) for rate in rates]
        if kinds != [(kept.shape[1:], kept.dtype, kept.device) for kept in self.rates]:
            self.rates = [rate.new_full((LENGTH, *rate.shape), torch.nan) for rate in rates]
        return self.seeds, self.calls
