"""CIFAR-10, CIFAR-100 and Fashion-MNIST, as torchvision reads and fetches them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from .source import Source, missing


def load(name: str, root: str | None, download: bool) -> Source:
    """Read the published training and test set below `root`, fetched first if `download` says so."""
    datasets = import_torchvision(name).datasets
    # CIFAR's files are pickles, which could run anything. torchvision compares their MD5 with those it knows before
    # it opens them; that check must stay on, so nothing here reads them past it.
    cls, folder = {
        "cifar10": (datasets.CIFAR10, "cifar-10-batches-py"),
        "cifar100": (datasets.CIFAR100, "cifar-100-python"),
        "fashion-mnist": (datasets.FashionMNIST, "FashionMNIST/raw"),
    }[name]
    if root is None or not (download or (Path(root) / folder).is_dir()):
        advice = "set it with --set data.root=FOLDER, and data.download=true to have the files fetched there"
        raise missing(f"the folder that holds {folder}", root, advice)
    train, test = (_read(cls, root, train, download, name, folder) for train in (True, False))
    return Source(
        _channels_first(train.data),
        np.asarray(train.targets, dtype=np.int64),
        _channels_first(test.data),
        np.asarray(test.targets, dtype=np.int64),
        classes=len(train.classes),
    )


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
            # NumPy 2.4.0 to 2.4.4 warn of pickles as old as these, which say 0 and 1 for False and True.
            warnings.filterwarnings("ignore", message=r"dtype\(\): align should be passed as Python or NumPy boolean")
            return cls(root, train=train, download=download)
    # What torchvision raises for missing, damaged and unreachable files; URLError is an OSError.
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        if download:
            raise ArgumentError(f"data.download: {name} could not be fetched into {root!r}: {reason}") from error
        raise ArgumentError(
            f"data.root: expected complete and unchanged files of {name} in {str(Path(root) / folder)!r}; remove them "
            f"and set data.download=true ({reason})"
        ) from error


def _channels_first(images: Any) -> Any:
    """[N, C, S, S] in uint8 from what torchvision keeps: [N, S, S, C] arrays or [N, S, S] tensors."""
    array = np.asarray(images)
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))
