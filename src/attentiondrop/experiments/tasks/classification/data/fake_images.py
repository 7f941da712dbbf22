"""Artificial colour images of any size that a model can learn, for tests and to try a recipe without data files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...draw_keys import key
from .source import Source

SIZE = 32
CLASSES = 10
TRAIN, TEST = 2000, 500
#: The pattern of a class has this many coloured squares along each side.
_SQUARES = 4


def load(size: int = SIZE) -> Source:
    """2000 images for training and 500 for testing: half the pattern of the class, half uniform noise."""
    generator = np.random.default_rng(key("fake"))
    patterns = generator.integers(256, size=(CLASSES, 3, _SQUARES, _SQUARES), dtype=np.uint8)
    square = np.arange(size) * _SQUARES // size
    large = patterns[:, :, square[:, None], square] // 2

    def draw(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        labels = generator.permutation(np.arange(count) % CLASSES)
        images = generator.integers(128, size=(count, 3, size, size), dtype=np.uint8)
        images += large[labels]
        return images, labels

    return Source(*draw(TRAIN), *draw(TEST), classes=CLASSES)
