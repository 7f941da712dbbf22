"""Split images into parts, add label noise, and compute checksums of the parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....errors import ArgumentError
from ...draw_keys import key
from .image_settings import ImageSettings

Indices = NDArray[np.int64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The indices of each part, in increasing order, and the labels to train with.

    `train` and `validation` point into the published training set, `test` into the published test set.
    """

    train: Indices
    train_labels: Labels
    validation: Indices
    test: Indices


def split(train_labels: Labels, test_labels: Labels, classes: int, settings: ImageSettings) -> Split:
    """Hold out, keep a fraction, limit, change labels: in this order, with an independent draw for each."""
    seed = settings.seed
    count = len(train_labels)
    held = max(1, round(settings.validation * count))
    if held >= count or len(test_labels) == 0:
        raise ArgumentError(
            f"data: expected enough images for a training, a validation and a test part, received {count} to train "
            f"with, of which {held} would be held out (data.validation={settings.validation:g}), and "
            f"{len(test_labels)} to test with"
        )
    order = stratified_order(train_labels, key("validation", seed))
    validation, rest = order[:held], np.sort(order[held:])
    # Fraction and limit use the same order, so that limited images are a subset of those of any larger fraction.
    rest = rest[stratified_order(train_labels[rest], key("train", seed))]
    kept = rest[: max(1, round(settings.train_fraction * len(rest)))]
    train = np.sort(kept[: settings.limit])
    test = stratified_order(test_labels, key("test", seed))[: settings.limit]
    noisy = with_noise(train_labels[train], settings.label_noise, classes, key("noise", seed))
    return Split(train, noisy, np.sort(validation[: settings.limit]), np.sort(test))


def stratified_order(labels: Labels, seed: int) -> Indices:
    """A random order of all indices. In every prefix of it, the classes have about their overall shares.

    The images of each class are shuffled and placed at equal distances in [0, 1), from a random start for each class:
    with a common start, short prefixes would favour some classes. The images are then sorted by their place.
    """
    # Only `random` is used: the draws of other methods of NumPy's generators may change between versions.
    generator = np.random.default_rng(seed)
    shuffled = np.lexsort((generator.random(len(labels)), labels))
    _, first, counts = np.unique(labels[shuffled], return_index=True, return_counts=True)
    ranks = np.arange(len(labels)) - np.repeat(first, counts)
    positions = (ranks + np.repeat(generator.random(len(counts)), counts)) / np.repeat(counts, counts)
    order: Indices = shuffled[np.argsort(positions, kind="stable")]
    return order


def with_noise(labels: Labels, share: float, classes: int, seed: int) -> Labels:
    """`labels` with exactly this share of them, rounded, replaced by another class."""
    draws = np.random.default_rng(seed).random((2, len(labels)))
    chosen = np.argsort(draws[0], kind="stable")[: round(share * len(labels))]
    if len(chosen) and classes < 2:
        raise ArgumentError("data.label_noise: expected 0 for data of one class")
    shift = 1 + np.floor(draws[1] * (classes - 1)).astype(np.int64)
    noisy = labels.copy()
    noisy[chosen] = (labels[chosen] + shift[chosen]) % classes
    return noisy


def checksum(images: NDArray[Any], labels: Labels) -> str:
    """SHA-256 of the pixels and labels of a part, with their types and shapes."""
    digest = hashlib.sha256()
    for array in (images, labels):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
