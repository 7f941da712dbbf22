"""scikit-learn's digits: 1797 grey images of 8 x 8 pixels in ten classes, shipped with the package."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from ...draw_keys import key
from .source import Source
from .splitting import stratified_order

#: The digits were published without a test set. This share of them is the test set, with any settings.
TEST_SHARE = 0.3
#: Pixels are integers from 0 to 16.
_BRIGHTEST = np.float32(16)


def load() -> Source:
    """1258 images for training and 539 for testing, stratified, in [0, 1]."""
    bunch = load_digits()
    images = np.asarray(bunch.images, dtype=np.float32)[:, None] / _BRIGHTEST
    labels = np.asarray(bunch.target, dtype=np.int64)
    order = stratified_order(labels, key("digits"))
    held = round(TEST_SHARE * len(labels))
    train, test = np.sort(order[held:]), np.sort(order[:held])
    return Source(images[train], labels[train], images[test], labels[test], classes=len(bunch.target_names))
