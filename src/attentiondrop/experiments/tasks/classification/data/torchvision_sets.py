"""CIFAR-10, CIFAR-100 and Fashion-MNIST, read and fetched by torchvision."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .....errors import ArgumentError
from ...missing_files import how_to_name, missing
from .source import Source, one_line


def load(name: str, root: str | None, download: bool) -> Source:
    """Read the published training and test set below `root`. With `download` they are fetched first."""
    datasets = import_torchvision(name).datasets
    # The files of CIFAR are pickles, which could run any code. torchvision checks their MD5 before it opens them.
    # Always read them through torchvision, so that this check stays on.
    cls, folder = {
        "cifar10": (datasets.CIFAR10, "cifar-10-batches-py"),
        "cifar100": (datasets.CIFAR100, "cifar-100-python"),
        "fashion-mnist": (datasets.FashionMNIST, "FashionMNIST/raw"),
    }[name]
    if root is None or not (download or (Path(root) / folder).is_dir()):
        advice = f"{how_to_name('FOLDER')}, and data.download=true to have the files fetched there"
        raise missing(f"the folder that holds {folder}", root, advice)
    train, test = (_read(cls, root, train, download, name, folder) for train in (True, False))
    classes = len(train.classes)
    train_labels, test_labels = (np.asarray(part.targets, dtype=np.int64) for part in (train, test))
    for part, labels in ((train, train_labels), (test, test_labels)):
        # For Fashion-MNIST, torchvision checks only what it downloads, not the files that are already on disk.
        if len(labels) != len(part.data) or not (labels.min() >= 0 and labels.max() < classes):
            reason = f"{len(part.data)} images, {len(labels)} labels from {labels.min()} to {labels.max()}"
            raise _changed(name, root, folder, reason)
    return Source(_channels_first(train.data), train_labels, _channels_first(test.data), test_labels, classes)


def import_torchvision(name: str) -> Any:
    """The package, or an error that says how to get it."""
    try:
        import torchvision
    except ImportError as error:
        raise ArgumentError(
            f"data.name: {name!r} needs torchvision; install it with: pip install torchvision"
        ) from error
    return torchvision


def _read(cls: Any, root: str, train: bool, download: bool, name: str, folder: str) -> Any:
    try:
        with warnings.catch_warnings():
            # NumPy 2.4.0 to 2.4.4 warn of these old pickles, which store 0 and 1 for False and True.
            warnings.filterwarnings("ignore", message=r"dtype\(\): align should be passed as Python or NumPy boolean")
            return cls(root, train=train, download=download)
    # For missing, damaged or unreachable files torchvision raises many kinds of errors, even AssertionError.
    except Exception as error:
        reason = one_line(error)
        if download:
            raise ArgumentError(f"data.download: {name} could not be fetched into {root!r}: {reason}") from error
        raise _changed(name, root, folder, reason) from error


def _changed(name: str, root: str, folder: str, reason: str) -> ArgumentError:
    return ArgumentError(
        f"data.root: expected complete and unchanged files of {name} in {str(Path(root) / folder)!r}; remove them "
        f"and set data.download=true ({reason})"
    )


def _channels_first(images: Any) -> Any:
    """Images of torchvision, [N, S, S, C] arrays or [N, S, S] tensors, as uint8 [N, C, S, S]."""
    array = np.asarray(images)
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))
