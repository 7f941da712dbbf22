"""AutoAugment and TrivialAugment: which operations an image gets, drawn for all images of an epoch at once.

The tables are torchvision's: the policy that AutoAugment found on CIFAR-10, and the ranges of TrivialAugmentWide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...draw_keys import key
from .image_operations import OPERATIONS, operate

_NAMES = tuple(OPERATIONS)
_IDENTITY = _NAMES.index("Identity")
#: The bins of magnitudes that torchvision's policies count in.
_AUTO_BINS, _TRIVIAL_BINS = 10, 31


@dataclass(frozen=True)
class Draws:
    """The operations of each image, one after the other, and their magnitudes, both [N, operations], on the CPU."""

    operations: Tensor
    magnitudes: Tensor

    def apply(self, images: Tensor, which: Tensor) -> Tensor:
        """`images`, of which the first has the draws `which[0]` and so on, after their operations; `which` on the CPU.

        Images with the same operation are changed together. Their places are known on the host, so it never waits.
        """
        operations, magnitudes = self.operations[which], self.magnitudes[which]
        for own, rates in zip(operations.T, magnitudes.T, strict=True):
            changed = images.clone()
            for number in own.unique().tolist():
                if number != _IDENTITY:
                    places = (own == number).nonzero()[:, 0]
                    there = places.to(images.device, non_blocking=True)
                    changed[there] = operate(images[there], _NAMES[number], rates[places])
            images = changed
        return images


def draw_operations(augment: str, count: int, size: int, seed: int, epoch: int) -> Draws | None:
    """The draws for `count` images of `size` x `size` pixels; None if `augment` is not a policy."""
    generator = torch.Generator().manual_seed(key("policy", seed, epoch))
    if augment == "autoaugment":
        return _auto(count, size, generator)
    return _trivial(count, generator) if augment == "trivialaugment" else None


def _auto(count: int, size: int, generator: torch.Generator) -> Draws:
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    policy = AutoAugment(AutoAugmentPolicy.CIFAR10)
    ranges = policy._augmentation_space(_AUTO_BINS, (size, size))
    steps = policy.policies
    chosen = torch.randint(len(steps), (count,), generator=generator)
    chance = torch.rand(count, 2, generator=generator)
    mirrored = torch.rand(count, 2, generator=generator) < 0.5
    operations = torch.tensor([[_NAMES.index(name) for name, _, _ in pair] for pair in steps])
    shares = torch.tensor([[share for _, share, _ in pair] for pair in steps])
    levels = torch.tensor(
        [[0.0 if number is None else float(ranges[name][0][number]) for name, _, number in pair] for pair in steps],
        dtype=torch.float64,
    )
    signed = torch.tensor([[ranges[name][1] for name, _, _ in pair] for pair in steps])
    magnitudes = torch.where(signed[chosen] & mirrored, -levels[chosen], levels[chosen])
    return Draws(torch.where(chance <= shares[chosen], operations[chosen], _IDENTITY), magnitudes)


def _trivial(count: int, generator: torch.Generator) -> Draws:
    from torchvision.transforms import TrivialAugmentWide

    ranges = TrivialAugmentWide()._augmentation_space(_TRIVIAL_BINS)
    chosen = torch.randint(len(ranges), (count,), generator=generator)
    bins = torch.randint(_TRIVIAL_BINS, (count,), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    names = torch.tensor([_NAMES.index(name) for name in ranges])
    levels = torch.stack([values.double().expand(_TRIVIAL_BINS) for values, _ in ranges.values()])
    signed = torch.tensor([sign for _, sign in ranges.values()])
    level = levels[chosen, bins]
    magnitudes = torch.where(signed[chosen] & mirrored, -level, level)
    return Draws(names[chosen][:, None], magnitudes[:, None])
