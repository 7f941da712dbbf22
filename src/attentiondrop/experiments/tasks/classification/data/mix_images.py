"""Mix the images of some batches, and their targets: half of those batches by Mixup, half by CutMix, both with alpha 1.

The draws depend only on (seed, epoch), so a run can resume at any epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...draw_keys import key
from ...interface import Batch


def mixed(batches: Iterable[Batch], share: float, classes: int, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches with class probabilities as targets, about `share` of them mixed. Each image is mixed with the one
    before it: the order of a training epoch is random, so that is a random partner."""
    generator = torch.Generator().manual_seed(key("mix", seed, epoch))
    for images, labels in batches:
        targets = one_hot(labels, classes).float()
        # Beta(1, 1) is the uniform distribution.
        chance, kind, weight, down, across = torch.rand(5, generator=generator, dtype=torch.float64).tolist()
        if chance >= share:
            yield Batch(images, targets)
        elif kind < 0.5:
            yield Batch(_mixup(images, weight), _mixup(targets, weight))
        else:
            height, width = images.shape[-2:]
            top, bottom = _side(height, down, weight)
            left, right = _side(width, across, weight)
            cut = images.clone()
            cut[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
            yield Batch(cut, _mixup(targets, 1.0 - (bottom - top) * (right - left) / (height * width)))


def _mixup(values: Tensor, weight: float) -> Tensor:
    """`weight` of each, and the rest of the one before."""
    return weight * values + (1.0 - weight) * values.roll(1, 0)


def _side(length: int, middle: float, weight: float) -> tuple[int, int]:
    """Where the box begins and ends. Its middle may lie near an edge; what reaches beyond the image is cut off."""
    half, place = int(0.5 * math.sqrt(1.0 - weight) * length), int(middle * length)
    return max(0, place - half), min(length, place + half)
