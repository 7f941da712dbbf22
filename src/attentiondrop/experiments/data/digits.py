"""scikit-learn's digits: 1797 grey images of 8 x 8 pixels in ten classes, shipped with the package."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from .dataset import Dataset

#: The split is the same for every seed of a run: seeds measure training noise, not which images were drawn.
SPLIT_SEED = 0
#: Few training images, so that overfitting, and what a regulariser does against it, shows within seconds.
TRAIN_SHARE = 0.4


def load(samples: int | None = None) -> Dataset:
    """The stratified split, scaled to [0, 1] and standardised with the mean and deviation of the training half.

    `samples` keeps that many images of each half; the standardisation still uses the whole training half.
    """
    bunch = load_digits()
    images = np.asarray(bunch.images, dtype=np.float32)[:, None] / np.float32(16)
    labels = np.asarray(bunch.target, dtype=np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), train_size=TRAIN_SHARE, stratify=labels, random_state=SPLIT_SEED
    )
    images = (images - images[train].mean()) / images[train].std()
    train, test = train[:samples], test[:samples]
    arrays = (images[train], labels[train], images[test], labels[test])
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    train_images, train_labels, test_images, test_labels = (torch.from_numpy(array) for array in arrays)
    return Dataset(
        train_images,
        train_labels,
        test_images,
        test_labels,
        classes=len(bunch.target_names),
        checksum=digest.hexdigest(),
    )
