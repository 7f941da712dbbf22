"""Crop and mirror a whole batch of images at random, on its device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...draw_keys import key

#: Black pixels added on every side before a crop of the original size.
PADDING = 4


class Moves(NamedTuple):
    """How each image of an epoch is changed, [N] each: where its crop starts, and whether it is mirrored."""

    down: Tensor
    right: Tensor
    mirrored: Tensor

    def to(self, device: torch.device) -> Moves:
        """The same moves on `device`."""
        return Moves(*(x.to(device, non_blocking=True) for x in self))

    def part(self, where: Tensor) -> Moves:
        """The moves of some of the images."""
        return Moves(*(x[where] for x in self))


def draw_moves(augment: str, count: int, seed: int, epoch: int, mirror: bool = False) -> Moves | None:
    """Draw the moves of an epoch, in the order of its images; None for "none". "flip-crop" mirrors in any case.

    All moves of an epoch are drawn at once on the CPU, so they do not depend on device, batch size or ranks.
    """
    if augment == "none":
        return None
    generator = torch.Generator().manual_seed(key("augment", seed, epoch))
    down, right = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    return Moves(down, right, mirrored if mirror or augment == "flip-crop" else torch.zeros_like(mirrored))


def move(images: Tensor, moves: Moves) -> Tensor:
    """Pad images [N, C, H, W] by `PADDING` black pixels, crop each to its old size where `moves` says, mirror it.

    >>> image = torch.arange(1, 5).view(1, 1, 2, 2)
    >>> stay, mirror = torch.tensor([PADDING]), torch.tensor([True])
    >>> move(image, Moves(stay + 1, stay, mirror)).tolist()
    [[[[4, 3], [0, 0]]]]
    """
    height, width = images.shape[-2:]
    padded = pad(images, (PADDING, PADDING, PADDING, PADDING))
    rows = moves.down[:, None] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = moves.right[:, None] + torch.where(moves.mirrored[:, None], columns.flip(0), columns)
    pixels = rows[:, :, None] * padded.shape[-1] + columns[:, None, :]
    return padded.flatten(2).gather(2, pixels.flatten(1)[:, None].expand(-1, images.shape[1], -1)).view_as(images)
