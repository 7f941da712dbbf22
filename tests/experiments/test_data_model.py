"""The digits, the recipe and the model."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.data import digits
from attentiondrop.experiments.models import vit
from attentiondrop.experiments.recipe import Recipe


def test_digits_are_split_once_stratified_and_standardised() -> None:
    data = digits.load()
    assert data.train_images.shape == (718, 1, 8, 8)
    assert data.test_images.shape == (1079, 1, 8, 8)
    assert data.train_images.dtype == data.test_images.dtype == torch.float32
    assert data.train_images.mean().abs() < 1e-5
    assert (data.train_images.std() - 1).abs() < 1e-3
    for labels in (data.train_labels, data.test_labels):
        counts = Counter(labels.tolist())
        assert len(counts) == data.classes == 10
        assert max(counts.values()) - min(counts.values()) < 0.1 * len(labels) / 10 + 2
    torch.manual_seed(123)
    assert digits.load().checksum == data.checksum


def test_samples_limit_both_halves_and_change_the_checksum() -> None:
    data, whole = digits.load(20), digits.load()
    assert len(data.train_labels) == len(data.test_labels) == 20
    assert torch.equal(data.train_images, whole.train_images[:20])
    assert data.checksum != whole.checksum


def test_no_image_is_in_both_halves() -> None:
    data = digits.load()
    train = {image.numpy().tobytes() for image in data.train_images}
    assert not any(image.numpy().tobytes() in train for image in data.test_images)


def test_dropout_sets_the_rates_of_the_model_and_no_others() -> None:
    rates = {
        name: module.p
        for name, module in vit.build(10, dropout=0.3).named_modules()
        if isinstance(module, torch.nn.Dropout)
    }
    assert rates["pos_drop"] == rates["blocks.0.attn.proj_drop"] == rates["blocks.3.mlp.drop1"] == 0.3
    assert rates["blocks.0.attn.attn_drop"] == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"warmup": 2.0},
        {"samples": 0},
        {"device": "abacus"},
        {"data": "letters"},
    ],
)
def test_a_recipe_names_the_wrong_setting(wrong: dict[str, object]) -> None:
    with pytest.raises(AttentionDropError, match=next(iter(wrong))):
        Recipe(**wrong)  # type: ignore[arg-type]
