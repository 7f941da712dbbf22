"""Made-up colour images of any size that a model can learn, for tests and for trying a recipe without any files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .draw_keys import key
from .source import Source

SIZE = 32
CLASSES = 10
TRAIN, TEST = 2000, 500
#: Each class has a pattern of this many coloured squares a side.
_SQUARES = 4


def load(size: int = SIZE) -> Source:
    """2000 images to train with and 500 to test with: half the pattern of the class, half uniform noise."""
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
