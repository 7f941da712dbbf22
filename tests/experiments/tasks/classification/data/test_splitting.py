"""Parts are disjoint, stratified and nested; label noise has the given rate; checksums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data.image_settings import ImageSettings
from attentiondrop.experiments.tasks.classification.data.splitting import checksum, split, stratified_order, with_noise

GENERATOR = np.random.default_rng(0)
TRAIN = GENERATOR.integers(10, size=3000)
TEST = GENERATOR.integers(10, size=800)


def cut(**settings: object):
    return split(TRAIN, TEST, 10, ImageSettings(**settings))


def test_every_beginning_of_the_order_is_stratified() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 300, 150, 50])
    order = stratified_order(labels, 7)
    assert sorted(order) == list(range(1000))
    for length in (1, 10, 33, 100, 500, 999):
        counts = np.bincount(labels[order[:length]], minlength=4)
        assert np.abs(counts - np.array([0.5, 0.3, 0.15, 0.05]) * length).max() <= 2


def test_balanced_classes_get_equal_shares() -> None:
    labels = np.arange(1000) % 10
    for length in (10, 100, 990):
        assert set(np.bincount(labels[stratified_order(labels, 1)[:length]])) == {length // 10}


def test_which_class_comes_first_is_drawn() -> None:
    labels = np.arange(100) % 10
    assert len({labels[stratified_order(labels, seed)[0]] for seed in range(50)}) > 5


def test_members_of_a_class_are_shuffled() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    first = np.sort(stratified_order(labels, 0)[:100])
    # The mean of 100 of 1000 places has a deviation of 27. Six deviations give one false alarm in 10^8.
    assert abs(first.mean() - 499.5) < 165
    assert not np.array_equal(first, np.sort(stratified_order(labels, 1)[:100]))


def test_parts_are_disjoint_complete_ordered_and_stratified() -> None:
    parts = cut(validation=0.2)
    assert len(parts.validation) == 600 and len(parts.train) == 2400 and len(parts.test) == 800
    assert sorted([*parts.train, *parts.validation]) == list(range(3000))
    for indices in (parts.train, parts.validation, parts.test):
        assert (np.diff(indices) > 0).all()
    expected = np.bincount(TRAIN) * 0.2
    assert np.abs(np.bincount(TRAIN[parts.validation]) - expected).max() <= 2
    assert np.array_equal(parts.train_labels, TRAIN[parts.train])


def test_validation_and_test_do_not_depend_on_what_is_trained_on() -> None:
    plain = cut()
    for other in (cut(train_fraction=0.1), cut(label_noise=0.5), cut(train_fraction=0.3, label_noise=1.0)):
        assert np.array_equal(other.validation, plain.validation)
        assert np.array_equal(other.test, plain.test)
        assert set(other.train) <= set(plain.train)


def test_smaller_fractions_and_limits_are_subsets_of_larger_ones() -> None:
    sets = [set(cut(train_fraction=share).train) for share in (0.01, 0.05, 0.33, 0.9, 1.0)]
    assert [len(x) for x in sets] == [27, 135, 891, 2430, 2700]
    assert all(small < large for small, large in itertools.pairwise(sets))
    few, more = cut(limit=20), cut(limit=200)
    for part in ("train", "validation", "test"):
        assert len(getattr(few, part)) == 20 and set(getattr(few, part)) < set(getattr(more, part))
    assert len(cut(limit=10**6).train) == 2700
    assert len(cut(train_fraction=1e-9).train) == 1


def test_the_seed_changes_every_draw() -> None:
    one, other = cut(limit=100, label_noise=0.5), cut(limit=100, label_noise=0.5, seed=1)
    for part in ("train", "validation", "test"):
        assert not np.array_equal(getattr(one, part), getattr(other, part))
    assert np.array_equal(one.train_labels, cut(limit=100, label_noise=0.5).train_labels)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.75, 1.0])
def test_exactly_the_share_of_labels_is_wrong(share: float) -> None:
    noisy = with_noise(TRAIN, share, 10, seed=5)
    assert (noisy != TRAIN).sum() == round(share * 3000)
    assert noisy.min() >= 0 and noisy.max() <= 9


def test_wrong_labels_are_uniform_over_the_other_classes_and_nested() -> None:
    labels = np.full(90_000, 3)
    noisy = with_noise(labels, 1.0, 10, seed=0)
    counts = np.bincount(noisy, minlength=10)
    assert counts[3] == 0
    # 10,000 expected with a deviation of 94; six deviations are allowed.
    assert np.abs(np.delete(counts, 3) - 10_000).max() < 566
    less, more = with_noise(labels, 0.2, 10, seed=0), with_noise(labels, 0.4, 10, seed=0)
    assert np.array_equal(less[less != 3], more[less != 3])


def test_one_class_cannot_be_wrong() -> None:
    zeros = np.zeros(10, dtype=np.int64)
    assert np.array_equal(with_noise(zeros, 0.0, 1, seed=0), zeros)
    with pytest.raises(AttentionDropError, match=r"data\.label_noise: expected 0 for data of one class"):
        with_noise(zeros, 0.5, 1, seed=0)


@pytest.mark.parametrize(("train", "test"), [(1, 5), (0, 5), (5, 0)])
def test_too_few_images_are_refused(train: int, test: int) -> None:
    with pytest.raises(AttentionDropError, match=f"received {train} to train with.* and {test} to test with"):
        split(TRAIN[:train], TEST[:test], 10, ImageSettings())


def test_a_checksum_sees_pixels_labels_type_and_shape() -> None:
    images, labels = np.arange(36, dtype=np.uint8).reshape(4, 1, 3, 3), np.arange(4)
    same = checksum(images, labels)
    assert len(same) == 64 and checksum(np.asfortranarray(images), labels.copy()) == same
    changed = images.copy()
    changed[3, 0, 2, 2] += 1
    others = [
        (changed, labels),
        (images, labels[::-1]),
        (images.astype(np.float32), labels),
        (images.reshape(4, 9), labels),
    ]
    assert len({same, *(checksum(*other) for other in others)}) == 5
