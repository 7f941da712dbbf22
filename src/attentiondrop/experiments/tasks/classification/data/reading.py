"""Load the data that settings describe. Only this module knows every source."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from .image_settings import FILES, ImageSettings

if TYPE_CHECKING:
    from .dataset import ImageData
    from .source import Source


def load_data(settings: ImageSettings) -> ImageData:
    """Read, split and check the data that `settings` describe, on the CPU.

    If files are missing or wrong, raises an `AttentionDropError` of one line that says what to do.

    >>> data = load_data(ImageSettings("digits", limit=100))
    >>> data.counts, data.classes, data.size
    ({'train': 100, 'validation': 100, 'test': 100}, 10, 8)
    >>> images, labels = next(data.train_batches(seed=0, epoch=0, batch_size=32))
    >>> list(images.shape)
    [32, 1, 8, 8]
    """
    if settings.root is not None:
        # A shell does not expand the ~ in data.root=~/datasets.
        settings = dataclasses.replace(settings, root=os.path.expanduser(settings.root))
    # Each source imports its own packages: digits do not need torchvision, CIFAR does not need scikit-learn.
    if settings.name in FILES:
        from .image_folder import load_folder

        return load_folder(settings)
    from .dataset import ArrayData

    return ArrayData.build(_source(settings), settings)


def _source(settings: ImageSettings) -> Source:
    if settings.name == "digits":
        from . import digits_images as digits

        return digits.load()
    if settings.name == "fake":
        from . import fake_images as fake

        return fake.load(settings.image_size or fake.SIZE)
    if settings.name == "npz":
        from . import npz_file as npz

        return npz.load(settings.root)
    from . import torchvision_sets as torchvision

    return torchvision.load(settings.name, settings.root, settings.download)
