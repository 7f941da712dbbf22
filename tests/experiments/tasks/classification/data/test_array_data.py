"""Data in memory: digits and artificial images, batches, ranks, epochs, normalisation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data import ImageSettings, load_data
from attentiondrop.experiments.tasks.classification.data.dataset import channel_statistics
from attentiondrop.experiments.tasks.classification.scoring import attacked_images
from attentiondrop.experiments.tasks.classification.settings import AttackSettings

PARTS = ("train", "validation", "test")


def load(**settings: object):
    return load_data(ImageSettings(**settings))


def pixels(data, part: str) -> list[bytes]:
    return [image.numpy().tobytes() for images, _ in data.batches(part, 100) for image in images]


def epoch(data, **settings):
    settings = {"seed": 0, "epoch": 0, "batch_size": 32} | settings
    images, labels = zip(*data.train_batches(**settings), strict=True)
    return torch.cat(images), torch.cat(labels)


def test_digits_as_they_come() -> None:
    data = load()
    assert (data.name, data.classes, data.channels, data.size) == ("digits", 10, 1, 8)
    assert data.counts == {"train": 1132, "validation": 126, "test": 539}
    images, labels = next(data.batches("test", 64))
    assert images.shape == (64, 1, 8, 8) and images.dtype == torch.float32
    assert labels.shape == (64,) and labels.dtype == torch.int64
    for part in PARTS:
        counts = np.bincount(torch.cat([y for _, y in data.batches(part, 100)]).numpy(), minlength=10)
        assert counts.max() - counts.min() <= 0.1 * data.counts[part] / 10 + 2


def test_no_image_is_in_two_parts() -> None:
    data = load()
    seen = [pixels(data, part) for part in PARTS]
    assert len({image for part in seen for image in part}) == sum(map(len, seen)) == 1797


def test_the_training_part_is_normalised_and_the_raw_pixels_are_in_the_unit_range() -> None:
    for data in (load(validation=0.3), load(name="fake", limit=300)):
        images = torch.cat([x for x, _ in data.batches("train", 100)])
        assert images.mean((0, 2, 3)).abs().max() < 1e-5
        assert (images.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5
        raw = torch.cat([x for x, _ in data.batches("train", 100, normalise=False)])
        assert raw.min() >= 0 and raw.max() <= 1 and raw.dtype == torch.float32
        assert torch.equal(data.normalise(raw), images)


def test_bytes_stay_bytes_in_memory() -> None:
    data = load(name="fake", limit=50)
    assert {x.dtype for x in data.images.values()} == {torch.uint8}
    raw = next(data.batches("test", 50, normalise=False))[0]
    assert torch.equal((raw * 255).round().to(torch.uint8), data.images["test"])


def test_statistics_of_bytes_and_floats_agree_and_a_blank_channel_is_left_alone() -> None:
    images = np.random.default_rng(0).integers(256, size=(20, 3, 6, 6), dtype=np.uint8)
    images[:, 2] = 51
    mean, std = channel_statistics(images)
    assert mean == pytest.approx(np.mean(images / 255, axis=(0, 2, 3)))
    assert std == pytest.approx([*np.std(images / 255, axis=(0, 2, 3))[:2], 1.0])
    floats = channel_statistics((images / 255).astype(np.float32))
    assert np.allclose([mean, std], floats, atol=1e-6)


def test_checksums_are_stable_and_tell_which_part_changed() -> None:
    base = {"name": "digits", "limit": 200}
    plain = load(**base).checksums
    assert set(plain) == set(PARTS) and len(set(plain.values())) == 3
    torch.manual_seed(99)
    np.random.default_rng(99)
    assert load(**base).checksums == plain
    changed = {
        "seed": {"seed": 1},
        "limit": {"limit": 100},
        "validation": {"validation": 0.3},
        "train_fraction": {"train_fraction": 0.1},
        "label_noise": {"label_noise": 0.1},
        "augment": {"augment": "crop"},
    }
    differ = {
        name: {part for part, value in load(**base | setting).checksums.items() if value != plain[part]}
        for name, setting in changed.items()
    }
    assert differ == {
        "seed": set(PARTS),
        "limit": set(PARTS),
        "validation": {"train", "validation"},
        "train_fraction": {"train"},
        "label_noise": {"train"},
        "augment": set(),
    }


def test_the_test_images_of_the_digits_never_change() -> None:
    assert load().checksums["test"] == load(seed=5, validation=0.4, label_noise=0.3).checksums["test"]


def test_label_noise_leaves_validation_and_test_clean() -> None:
    clean, noisy = load(), load(label_noise=0.25)
    for part in ("validation", "test"):
        assert torch.equal(clean.labels[part], noisy.labels[part])
    assert int((clean.labels["train"] != noisy.labels["train"]).sum()) == round(0.25 * 1132)
    assert torch.equal(clean.images["train"], noisy.images["train"])


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 100), (32, 3), (50, 2), (100, 1), (101, 1), (1000, 1)])
def test_the_last_incomplete_batch_is_left_out_unless_it_is_the_only_one(batch_size: int, steps: int) -> None:
    data = load(limit=100)
    sizes = [len(labels) for _, labels in data.train_batches(seed=0, epoch=0, batch_size=batch_size)]
    assert data.steps(batch_size) == steps
    assert sizes == [min(batch_size, 100)] * steps


def test_an_epoch_shows_every_image_once_with_its_label() -> None:
    data = load(limit=96)
    images, labels = epoch(data)
    pairs = {(image.numpy().tobytes(), int(label)) for image, label in zip(images, labels, strict=True)}
    expected = {
        (x.numpy().tobytes(), int(y)) for xs, ys in data.batches("train", 96) for x, y in zip(xs, ys, strict=True)
    }
    assert pairs == expected and len(pairs) == 96


@pytest.mark.parametrize("augment", ["none", "flip-crop"])
def test_an_epoch_depends_on_seed_and_number_alone(augment: str) -> None:
    data = load(limit=128, augment=augment)
    third = epoch(data, epoch=3)
    torch.manual_seed(77)
    state = torch.get_rng_state()
    fresh = load(limit=128, augment=augment)
    again = epoch(fresh, epoch=3)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(third[0], again[0]) and torch.equal(third[1], again[1])
    for other in ({"epoch": 2}, {"seed": 1, "epoch": 3}):
        assert not torch.equal(epoch(data, **other)[0], third[0])
    # The order does not even depend on the batch size.
    assert torch.equal(epoch(data, epoch=3, batch_size=16)[0], third[0])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("augment", ["none", "flip-crop"])
def test_ranks_share_the_batches_of_one_process(augment: str, world: int) -> None:
    data = load(name="fake", limit=150, augment=augment)
    alone = list(data.train_batches(seed=4, epoch=1, batch_size=32))
    ranks = [list(data.train_batches(seed=4, epoch=1, batch_size=32, rank=r, world=world)) for r in range(world)]
    assert len(alone) == 4
    for batch, *shares in zip(alone, *ranks, strict=True):
        for whole, *pieces in zip(batch, *shares, strict=True):
            assert {len(piece) for piece in pieces} == {32 // world}
            assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("part", PARTS)
def test_ranks_share_a_part_in_equally_many_batches(part: str, world: int) -> None:
    data = load(limit=65)
    alone = list(data.batches(part, 32))
    ranks = [list(data.batches(part, 32, rank=r, world=world)) for r in range(world)]
    assert [len(y) for _, y in alone] == [32, 32, 1]
    for batch, *shares in zip(alone, *ranks, strict=True):
        for whole, *pieces in zip(batch, *shares, strict=True):
            assert torch.equal(torch.cat(pieces), whole)


def test_augmentation_is_for_training_only() -> None:
    plain, augmented = load(limit=64), load(limit=64, augment="crop")
    assert torch.equal(next(plain.batches("train", 64))[0], next(augmented.batches("train", 64))[0])
    same, moved = epoch(plain), epoch(augmented)
    assert torch.equal(same[1], moved[1]) and not torch.equal(same[0], moved[0])
    # Pixels from outside the image are black.
    assert moved[0].min() == pytest.approx(plain.normalise(torch.zeros(1, 1, 1, 1)).item())


def test_normalise_can_be_differentiated_after_inference() -> None:
    data = load(limit=20, seed=123)
    with torch.inference_mode():
        list(data.batches("test", 20))
    image = next(data.batches("test", 20, normalise=False))[0].requires_grad_()
    data.normalise(image).sum().backward()
    assert torch.allclose(image.grad, torch.full_like(image, 1 / data.std[0]))


def test_moving_keeps_what_is_known() -> None:
    data = load(limit=30)
    moved = data.to("meta")
    assert moved.device.type == "meta" and moved.images["test"].device.type == "meta"
    assert (moved.checksums, moved.counts, moved.mean) == (data.checksums, data.counts, data.mean)
    assert data.device.type == "cpu" == data.images["test"].device.type
    assert {field.name for field in dataclasses.fields(data)} >= {"name", "classes", "channels", "size", "mean", "std"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", ["none", "flip-crop"])
def test_an_accelerator_gives_the_same_batches(augment: str) -> None:
    data = load(name="fake", limit=200, augment=augment)
    there = data.to("cuda")
    for (x, y), (a, b) in zip(
        data.train_batches(seed=1, epoch=2, batch_size=64),
        there.train_batches(seed=1, epoch=2, batch_size=64),
        strict=True,
    ):
        assert a.device.type == b.device.type == "cuda"
        assert torch.equal(y, b.cpu()) and torch.allclose(x, a.cpu(), rtol=1e-6, atol=1e-6)


def test_made_up_images_of_any_size_have_patterns_to_learn() -> None:
    data = load(name="fake", image_size=9, limit=500)
    assert data.size == 9 and data.channels == 3
    images, labels = next(data.batches("train", 500))
    centres = torch.stack([images[labels == c].mean(0) for c in range(10)])
    images, labels = next(data.batches("test", 500))
    nearest = torch.cdist(images.flatten(1), centres.flatten(1)).argmin(1)
    assert (nearest == labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: data.batches("all", 8), "part: expected one of 'train', 'validation', 'test', received 'all'"),
        (lambda data: data.batches("test", 0), "batch_size: expected a number >= 1, received 0"),
        (lambda data: data.steps(0), "batch_size: expected a number >= 1, received 0"),
        (lambda data: data.batches("test", 8, rank=2, world=2), "rank: expected an integer below world=2, received 2"),
        (
            lambda data: data.train_batches(seed=0, epoch=0, batch_size=9, rank=0, world=2),
            "batch_size: expected batches that 2 processes share equally, received 9",
        ),
        (
            lambda data: data.train_batches(seed=0, epoch=0, batch_size=64, rank=0, world=2),
            "batch_size: expected batches that 2 processes share equally, received 33",
        ),
    ],
)
def test_wrong_calls_are_refused_at_once(call, message: str) -> None:
    data = load(limit=33)
    with pytest.raises(AttentionDropError) as caught:
        call(data)
    assert str(caught.value) == message


def test_attacked_images_have_the_classes_in_their_shares(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), (40, 20, 20, 20))
    pixels = np.arange(100, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    path = tmp_path / "sorted.npz"
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    data = load(name="npz", root=str(path))

    def attacked(**settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = zip(*attacked_images(data, AttackSettings(batch_size=16, **settings)), strict=True)
        return torch.cat(images), torch.cat(labels)

    images, chosen = attacked(pgd_examples=25)
    assert np.bincount(chosen).tolist() == pytest.approx([10, 5, 5, 5], abs=1)
    places = (255 * images[:, 0, 0, 0]).round().long()
    assert torch.equal(chosen, torch.from_numpy(labels)[places]) and places.tolist() == sorted(set(places.tolist()))
    assert torch.equal(attacked(pgd_examples=25)[0], images)
    assert attacked(pgd_examples=25, pgd_choice="first")[1].unique().tolist() == [0]
    assert all(map(torch.equal, attacked(pgd_examples=100), attacked(pgd_examples=300, pgd_choice="first")))
    with pytest.raises(AttentionDropError, match="pgd_choice: expected one of"):
        AttackSettings(pgd_choice="last")
