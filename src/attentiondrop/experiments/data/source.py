"""What a source of images in memory hands over, before anything is held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError

Images = NDArray[Any]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Images [N, C, S, S], uint8 or float32 in [0, 1], and labels [N] below `classes`, as they were published."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int


def missing(expected: str, root: str | None, advice: str) -> ArgumentError:
    """The one wording of "the files are not there"."""
    return ArgumentError(f"data.root: expected {expected}, received {root!r}; {advice}")
