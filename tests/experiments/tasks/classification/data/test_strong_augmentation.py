"""Policies, erasing and mixing: the same as torchvision for fixed magnitudes, and draws that follow seed and epoch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode, TrivialAugmentWide, v2
from torchvision.transforms.autoaugment import _apply_op

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.classification.data import ImageSettings, load_data
from attentiondrop.experiments.tasks.classification.data.augment_policies import draw_operations
from attentiondrop.experiments.tasks.classification.data.erase_boxes import RATIO, SCALE, draw_boxes, erase
from attentiondrop.experiments.tasks.classification.data.image_operations import OPERATIONS, operate
from attentiondrop.experiments.tasks.classification.data.mix_images import mixed
from attentiondrop.experiments.tasks.interface import Batch

#: Operation -> magnitudes, among them the ends of both policies.
MAGNITUDES = {
    **dict.fromkeys(("ShearX", "ShearY"), (0.3, -0.2, 0.99, 0.0)),
    **dict.fromkeys(("TranslateX", "TranslateY"), (14.5, -3.2, 32.0, 0.0)),
    "Rotate": (30.0, -7.5, 135.0, 0.0),
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), (0.9, -0.99, 0.25, 0.0)),
    "Posterize": (8.0, 4.0, 2.0, 6.0),
    "Solarize": (255.0, 0.0, 100.5, 200.0),
}


def pictures(count: int = 8, channels: int = 3, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    found = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    found[0] = 7  # one colour: contrast and equalisation have nothing to stretch
    found[1] = found[1] // 4 + 90  # dark and flat
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_torchvision(name: str, channels: int) -> None:
    images = pictures(channels=channels)
    rates = MAGNITUDES.get(name, (0.0,))
    magnitudes = torch.tensor([rates[i % len(rates)] for i in range(len(images))], dtype=torch.float64)
    expected = torch.stack(
        [_apply_op(x, name, float(m), InterpolationMode.NEAREST, None) for x, m in zip(images, magnitudes, strict=True)]
    )
    found = operate(images, name, magnitudes)
    assert found.dtype == torch.uint8
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert name in ("Identity",) or not torch.equal(found, images) or (channels == 1 and name == "Color")


def test_autoaugment_draws_the_policy_of_torchvision() -> None:
    count, names = 20000, tuple(OPERATIONS)
    draws = draw_operations("autoaugment", count, 32, seed=1, epoch=2)
    assert draws is not None
    policy = AutoAugment(AutoAugmentPolicy.CIFAR10)
    ranges = policy._augmentation_space(10, (32, 32))
    for slot in range(2):
        expected = dict.fromkeys(names, 0.0)
        for pair in policy.policies:
            name, share, _ = pair[slot]
            expected[name] += share / len(policy.policies)
        expected["Identity"] = 1.0 - sum(expected.values())
        found = torch.bincount(draws.operations[:, slot], minlength=len(names)) / count
        for name, share in zip(names, found.tolist(), strict=True):
            assert share == pytest.approx(expected[name], abs=5 * math.sqrt(0.25 / count)), (slot, name)
    turned = draws.magnitudes[draws.operations[:, 0] == names.index("Rotate"), 0]
    level = float(ranges["Rotate"][0][2])
    assert {round(x, 4) for x in turned.tolist()} == {round(level, 4), round(-level, 4)}


def test_trivialaugment_draws_one_operation_of_any_magnitude() -> None:
    draws = draw_operations("trivialaugment", 20000, 32, seed=0, epoch=0)
    assert draws is not None
    ranges = TrivialAugmentWide()._augmentation_space(31)
    assert draws.operations.shape == (20000, 1)
    assert {tuple(OPERATIONS)[i] for i in draws.operations.unique().tolist()} == set(ranges)
    turned = draws.magnitudes[draws.operations == tuple(OPERATIONS).index("Rotate")]
    assert len(turned.unique()) == 61 and turned.max() == 135.0 and turned.min() == -135.0
    assert draws.magnitudes[draws.operations == tuple(OPERATIONS).index("Solarize")].min() == 0.0


def test_draws_are_applied_one_after_the_other_to_their_images() -> None:
    images, names = pictures(64), tuple(OPERATIONS)
    draws = draw_operations("autoaugment", 100, 32, seed=5, epoch=0)
    assert draws is not None
    which = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:64]
    expected = images.clone()
    for i, number in enumerate(which.tolist()):
        for operation, magnitude in zip(
            draws.operations[number].tolist(), draws.magnitudes[number].tolist(), strict=True
        ):
            expected[i] = _apply_op(expected[i], names[operation], magnitude, InterpolationMode.NEAREST, None)
    assert torch.equal(draws.apply(images, which), expected)


def test_boxes_have_the_areas_and_ratios_of_torchvision() -> None:
    boxes = draw_boxes(0.25, 40000, 32, seed=0, epoch=0)
    assert boxes is not None
    heights, widths = (boxes.bottom - boxes.top), (boxes.right - boxes.left)
    drawn = heights > 0
    assert drawn.float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert boxes.top.min() >= 0 and boxes.bottom.max() <= 32 and boxes.left.min() >= 0 and boxes.right.max() <= 32
    assert boxes.bottom.max() == 32 and boxes.right.max() == 32  # boxes touch the far edges, too
    torch.manual_seed(0)
    whole = torch.zeros(1, 32, 32)
    theirs = [v2.RandomErasing.make_params(v2.RandomErasing(1.0, SCALE, RATIO), [whole]) for _ in range(4000)]
    for mine, other in ((heights[drawn], "h"), (widths[drawn], "w")):
        expected = np.array([x[other] for x in theirs])
        error = expected.std() * math.sqrt(1 / len(expected) + 1 / len(mine))
        assert mine.double().mean().item() == pytest.approx(expected.mean(), abs=5 * error)


def test_a_box_gets_the_colour() -> None:
    images = torch.ones(2, 3, 4, 4)
    boxes = draw_boxes(1.0, 2, 4, seed=0, epoch=0)
    assert boxes is not None
    fixed = type(boxes)(*(torch.tensor(x) for x in ([1, 0], [0, 0], [3, 0], [2, 0])))
    found = erase(images, fixed, torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1))
    assert found[0, 1, 1:3, 0:2].flatten().tolist() == pytest.approx([0.2] * 4)
    assert found[0].sum().item() == pytest.approx(3 * 12 + 4 * 0.6)
    assert torch.equal(found[1], images[1])
    assert draw_boxes(0.0, 2, 4, seed=0, epoch=0) is None


def test_mixing_moves_targets_with_pixels() -> None:
    """Images of one colour each, of their class: the mean colour of a mixed image is the mean of its targets."""
    labels = torch.arange(8)
    images = labels.float().view(8, 1, 1, 1).expand(8, 1, 16, 16)
    kinds = set()
    for images_, targets in mixed([Batch(images, labels)] * 200, 0.5, 8, seed=0, epoch=0):
        expected = targets @ torch.arange(8.0)
        torch.testing.assert_close(images_.mean(dim=(1, 2, 3)), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(8))
        whole = torch.equal(images_, images)
        kinds.add("whole" if whole else "mixup" if images_[0].unique().numel() == 1 else "cutmix")
    assert kinds == {"whole", "mixup", "cutmix"}


def test_how_often_batches_are_mixed() -> None:
    labels = torch.arange(4)
    images = torch.rand(4, 1, 16, 16)
    batches = [Batch(images, labels)] * 2000
    same = [torch.equal(found.inputs, images) for found in mixed(batches, 0.3, 4, seed=1, epoch=0)]
    assert sum(same) / len(same) == pytest.approx(0.7, abs=0.04)  # a CutMix of no pixel counts as the same


def strong(**changes: object) -> ImageSettings:
    usual = {"name": "fake", "augment": "autoaugment", "erase": 0.5, "mix": 0.5, "image_size": 16}
    return ImageSettings(**{**usual, **changes})  # type: ignore[arg-type]


def test_an_epoch_depends_on_seed_and_epoch_alone() -> None:
    data = load_data(strong())
    first = list(data.train_batches(seed=1, epoch=2, batch_size=50))
    torch.manual_seed(9)
    again = list(data.train_batches(seed=1, epoch=2, batch_size=50))
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(first[0].inputs, next(iter(data.train_batches(seed=1, epoch=3, batch_size=50))).inputs)
    assert first[0].targets.shape == (50, data.classes)


def test_groups_of_batches_give_the_batches_of_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from attentiondrop.experiments.tasks.classification.data import dataset

    data = load_data(strong())
    expected = list(data.train_batches(seed=0, epoch=0, batch_size=50))
    monkeypatch.setattr(dataset, "_GROUP_BYTES", 1)
    found = list(data.train_batches(seed=0, epoch=0, batch_size=50))
    assert len(found) == len(expected) > 1
    assert all(torch.equal(a, b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True))


def test_other_parts_are_not_augmented() -> None:
    plain, rich = load_data(strong(augment="none", erase=0.0, mix=0.0)), load_data(strong())
    for part in ("validation", "test"):
        for a, b in zip(plain.batches(part, 100), rich.batches(part, 100), strict=True):
            assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)


def test_bad_settings_name_themselves() -> None:
    with pytest.raises(ArgumentError, match=r"data.augment: expected images of 1 or 3 channels of uint8"):
        load_data(ImageSettings("digits", augment="autoaugment"))
    with pytest.raises(ArgumentError, match=r"data.erase: expected a number in \[0, 1\], received 1.5"):
        ImageSettings(erase=1.5)
    for setting, value in (("augment", "trivialaugment"), ("erase", 0.1), ("mix", 0.5), ("resplit", True)):
        with pytest.raises(ArgumentError, match=f"data.{setting}: expected .* for imagenet"):
            ImageSettings("imagenet", **{setting: value})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"data.mix: expected 0 with 2 processes"):
        load_data(strong()).train_batches(seed=0, epoch=0, batch_size=50, rank=0, world=2)


def test_resplit_gives_each_seed_its_own_parts_and_one_checksum() -> None:
    settings = strong(resplit=True, train_fraction=0.5, label_noise=0.2)
    data = [load_data(settings.for_seed(seed)) for seed in (0, 1, 0)]
    assert data[0].checksums == data[1].checksums and len(set(data[0].checksums.values())) == 3
    assert torch.equal(data[0].images["train"], data[2].images["train"])  # type: ignore[attr-defined]
    for part in ("train", "validation"):
        assert not torch.equal(data[0].images[part], data[1].images[part])  # type: ignore[attr-defined]
    assert torch.equal(data[0].images["test"], data[1].images["test"])  # type: ignore[attr-defined]
    # What a seed drew has a checksum of its own, of images and labels.
    drawn = [each.drawn for each in data]  # type: ignore[attr-defined]
    assert drawn[0] == drawn[2] != drawn[1]
    clean = load_data(strong(resplit=True, train_fraction=0.5).for_seed(0))
    assert torch.equal(clean.images["train"], data[0].images["train"])  # type: ignore[attr-defined]
    assert clean.drawn not in drawn and load_data(strong()).drawn is None  # type: ignore[attr-defined]
    still = strong()
    assert still.for_seed(3) is still
