"""Random erasing: a box of some images gets the mean colour. The boxes are drawn as torchvision draws them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...draw_keys import key

#: The share of an image that a box covers, and the ratio of its height to its width: torchvision's defaults.
SCALE, RATIO = (0.02, 0.33), (0.3, 3.3)
#: A box that does not fit is drawn again, so many times in all. Then the image stays whole.
_TRIES = 10


class Boxes(NamedTuple):
    """The first and the last row and column of each box, the last ones not included, [N] each. All 0: no box."""

    top: Tensor
    left: Tensor
    bottom: Tensor
    right: Tensor

    def part(self, which: Tensor) -> Boxes:
        """The boxes of some of the images."""
        return Boxes(*(x[which] for x in self))

    def to(self, device: torch.device) -> Boxes:
        """The same boxes on `device`."""
        return Boxes(*(x.to(device, non_blocking=True) for x in self))


def draw_boxes(share: float, count: int, size: int, seed: int, epoch: int) -> Boxes | None:
    """A box for about `share` of `count` images of `size` x `size` pixels; None if `share` is 0."""
    if share == 0.0:
        return None
    generator = torch.Generator().manual_seed(key("erase", seed, epoch))
    erased = torch.rand(count, generator=generator) < share
    areas, ratios, downs, rights = torch.rand(4, count, _TRIES, generator=generator, dtype=torch.float64)
    area = size * size * (SCALE[0] + (SCALE[1] - SCALE[0]) * areas)
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = (low + (high - low) * ratios).exp()
    heights, widths = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (heights < size) & (widths < size)
    first = fits.int().argmax(dim=1, keepdim=True)
    height, width = heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]
    kept = erased & fits.any(dim=1)
    down, right = downs.gather(1, first)[:, 0], rights.gather(1, first)[:, 0]
    top, left = ((size - height + 1) * down).long(), ((size - width + 1) * right).long()
    return Boxes(*(torch.where(kept, x, 0) for x in (top, left, top + height, left + width)))


def erase(images: Tensor, boxes: Boxes, colour: Tensor) -> Tensor:
    """Images [N, C, S, S] with `colour`, [C, 1, 1], in their boxes."""
    places = torch.arange(images.shape[-1], device=images.device)
    rows = (places >= boxes.top[:, None]) & (places < boxes.bottom[:, None])
    columns = (places >= boxes.left[:, None]) & (places < boxes.right[:, None])
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], colour, images)
