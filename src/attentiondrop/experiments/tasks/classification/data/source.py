"""What a source of images in memory returns, before it is split into parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....errors import ArgumentError

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


def count_classes(where: str, train_labels: NDArray[Any], test_labels: NDArray[Any]) -> int:
    """The number of classes: one more than the largest label.

    It sets the size of the head of a model, so a single wrong label must not decide it: at least half of the classes
    must have images, and the training set at least two. Labels are integers >= 0 of any type; `where` names the file.
    """
    trained = np.unique(train_labels)
    if len(trained) < 2:
        raise ArgumentError(
            f"{where}: expected images of at least 2 classes to train with, received the label {trained[0]} alone"
        )
    # Python integers: NumPy would turn a mix of uint64 and int64 into float64, and wrap at 2**63.
    distinct = {*trained.tolist(), *np.unique(test_labels).tolist()}
    classes: int = 1 + max(distinct)
    if classes > 2 * len(distinct):
        raise ArgumentError(
            f"{where}: expected labels from 0 to the number of classes - 1, with images of at least half of the "
            f"classes, received {classes - 1} as the largest of {len(distinct)} distinct labels"
        )
    return classes


def one_line(error: BaseException) -> str:
    """The text of an error in one line, or its class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
