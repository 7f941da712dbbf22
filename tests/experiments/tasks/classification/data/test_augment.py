"""Crops and mirroring, compared with images that are moved one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attentiondrop.experiments.tasks.classification.data.augment import PADDING, Moves, draw_moves, move
from attentiondrop.experiments.tasks.classification.data.image_settings import POLICIES


def slowly(image: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * PADDING, width + 2 * PADDING, dtype=image.dtype)
    padded[:, PADDING:-PADDING, PADDING:-PADDING] = image
    cropped = padded[:, down : down + height, right : right + width]
    return cropped.flip(-1) if mirrored else cropped


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 1, 8, 8), (64, 2, 5, 11)])
def test_moves_a_batch_as_one_by_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images = torch.randint(256, shape).to(dtype)
    moves = draw_moves("flip-crop", len(images), seed=0, epoch=0)
    assert moves is not None
    expected = torch.stack([slowly(image, *(int(x) for x in one)) for image, *one in zip(images, *moves, strict=True)])
    moved = move(images, moves)
    assert moved.dtype == dtype and torch.equal(moved, expected)


def test_an_unmoved_image_stays() -> None:
    images = torch.rand(3, 2, 6, 6)
    stay = torch.full((3,), PADDING)
    assert torch.equal(move(images, Moves(stay, stay, torch.zeros(3, dtype=torch.bool))), images)


def test_moves_cover_all_places_and_mirror_half() -> None:
    moves = draw_moves("flip-crop", 20_000, seed=1, epoch=0)
    assert moves is not None
    for starts in (moves.down, moves.right):
        counts = torch.bincount(starts, minlength=9)
        # 2222 expected with a deviation of 44; six deviations are allowed.
        assert len(counts) == 9 and (counts - 20_000 / 9).abs().max() < 267
    assert abs(int(moves.mirrored.sum()) - 10_000) < 425
    assert abs(torch.corrcoef(torch.stack([x.float() for x in moves]))[0, 1:]).max() < 0.043


def test_crop_draws_the_same_crops_without_mirroring() -> None:
    both, crop = draw_moves("flip-crop", 100, seed=2, epoch=3), draw_moves("crop", 100, seed=2, epoch=3)
    assert both is not None and crop is not None
    assert torch.equal(both.down, crop.down) and torch.equal(both.right, crop.right)
    assert not crop.mirrored.any()
    assert draw_moves("none", 100, seed=2, epoch=3) is None
    for policy in POLICIES:
        assert torch.equal(draw_moves(policy, 100, seed=2, epoch=3, mirror=True).mirrored, both.mirrored)
        assert not draw_moves(policy, 100, seed=2, epoch=3).mirrored.any()


def test_draws_depend_on_seed_and_epoch() -> None:
    downs = {tuple(draw_moves("crop", 50, seed, epoch).down.tolist()) for seed in range(3) for epoch in range(3)}
    assert len(downs) == 9
