"""ImageNet, or images of the user in the same layout: a folder for each class in train/ and in val/."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .....errors import ArgumentError
from ...draw_keys import key
from ...interface import Batch
from ...missing_files import how_to_name, missing
from .dataset import PARTS, Batches, ImageData, unit_range
from .image_settings import ImageSettings
from .source import Labels, one_line
from .splitting import split
from .torchvision_sets import import_torchvision

SIZE = 224
#: The usual constants of ImageNet. Computing them from all images would take too long.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: For evaluation the shorter side is scaled to `size / SHOWN`, then the middle is cropped to `size`.
SHOWN = 224 / 256


class Files(NamedTuple):
    """The images of a part. `numbers` are their positions in the published set; their augmentation depends on these."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FolderData(ImageData):
    """Images in files. Worker processes read, decode and augment them; batches are normalised on `device`.

    The augmentation of an image depends only on (seed, epoch, its position in the published set), not on the number of
    workers or ranks. The checksums cover file names, sizes and labels, not pixels: reading all of ImageNet before each
    run would take too long. `mean` and `std` are those of ImageNet.
    """

    files: dict[str, Files]
    augment: str
    workers: int

    BY_PART: ClassVar[tuple[str, ...]] = (*ImageData.BY_PART, "files")

    def to(self, device: str | torch.device) -> FolderData:
        """The same files, with batches on `device`."""
        return dataclasses.replace(self, device=torch.device(device))

    def _train(self, order: Tensor, shares: Sequence[slice], seed: int, epoch: int) -> Batches:
        transform = training_transform(self.augment, self.size)
        return self._read(
            Decoded(self.files["train"], transform, (seed, epoch)), [order[share].tolist() for share in shares]
        )

    def labels_of(self, part: str) -> Labels:
        """The labels of a part, in order."""
        return np.asarray(self.files[part].labels, dtype=np.int64)

    def _plain(self, part: str, shares: Sequence[slice | list[int]]) -> Batches:
        places = [list(range(share.start, share.stop)) if isinstance(share, slice) else share for share in shares]
        return self._read(Decoded(self.files[part], evaluation_transform(self.size)), places)

    def _read(self, images: Decoded, indices: list[list[int]]) -> Batches:
        loader = DataLoader(
            images,
            batch_sampler=indices,
            num_workers=self.workers,
            multiprocessing_context=_start_method() if self.workers else None,
            collate_fn=self._collate,
            pin_memory=self.device.type == "cuda",
            # Without a generator, the loader would draw from the global one.
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, Unreadable):
                raise ArgumentError(
                    f"data.root: expected images that can be read, {batch.path!r} is not one: {batch.reason}"
                )
            pixels, labels = batch
            moved = pixels.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            yield Batch(unit_range(moved[0]), moved[1])

    def _collate(self, found: Sequence[tuple[Tensor, int] | Unreadable]) -> tuple[Tensor, Tensor] | Unreadable:
        samples: list[tuple[Tensor, int]] = []
        for entry in found:
            if isinstance(entry, Unreadable):
                return entry
            samples.append(entry)
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        if not samples:
            return torch.empty(0, self.channels, self.size, self.size, dtype=torch.uint8), labels
        return torch.stack([image for image, _ in samples]), labels


class Unreadable(NamedTuple):
    """Stands for an image that cannot be read. (A `DataLoader` turns an error in a worker into pages of text.)"""

    path: str
    reason: str


class Decoded(Dataset[tuple[Tensor, int] | Unreadable]):
    """Images as uint8 [3, S, S]. `seeds` are (seed, epoch) for a random transform, or None."""

    def __init__(self, files: Files, transform: Any, seeds: tuple[int, int] | None = None) -> None:
        self.files, self.transform, self.seeds = files, transform, seeds

    def __len__(self) -> int:
        return len(self.files.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Unreadable:
        from PIL.Image import DecompressionBombWarning

        path = self.files.paths[index]
        try:
            with warnings.catch_warnings():
                # Pillow also warns of what does not change the pixels, such as damaged EXIF data. Python would repeat
                # that for each image and epoch, because `catch_warnings` makes it forget what it has shown.
                warnings.simplefilter("ignore")
                # Pillow only warns of an image that declares very many pixels. Here such an image is unreadable.
                warnings.simplefilter("error", DecompressionBombWarning)
                image = _in_colour(path)
        # Decoders of Pillow raise many kinds of errors, for example SyntaxError for a broken PNG.
        except Exception as error:
            return Unreadable(path, one_line(error))
        # torchvision draws from the global generator of the CPU, so its state is restored afterwards.
        with torch.random.fork_rng(devices=()):
            if self.seeds is not None:
                torch.default_generator.manual_seed(key("image", *self.seeds, self.files.numbers[index]))
            return self.transform(image), self.files.labels[index]


def _in_colour(path: str) -> Any:
    """The image in RGB. One with more than 8 bits a value is an error: Pillow would cut its values off at 255."""
    from PIL import Image

    with open(path, "rb") as file:
        image = Image.open(file)
        if image.mode.startswith(("I", "F")):  # 16 or 32 bits, and floats
            raise ValueError(f"it has more than 8 bits a value (mode {image.mode}); scale it to 0 to 255 and save it")
        return image.convert("RGB")


def load_folder(settings: ImageSettings) -> FolderData:
    """List the images below `root`. The validation part is held out of train/; val/ is the test part."""
    torchvision = import_torchvision(settings.name)
    train, test = (_list(torchvision, settings.root, name) for name in ("train", "val"))
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise ArgumentError(
            f"data.root: expected the same classes in train/ and val/, received {len(train.classes)} and "
            f"{len(test.classes)}, such as {odd[0]!r} in only one of them"
        )
    if len(train.classes) < 2:
        raise ArgumentError(
            f"data.root: expected folders of at least 2 classes in train/ and val/ of {settings.root!r}, received "
            f"{train.classes[0]!r} alone"
        )
    train_labels, test_labels = (np.asarray(x.targets, dtype=np.int64) for x in (train, test))
    found = split(train_labels, test_labels, len(train.classes), settings)
    files = {
        "train": _files(train.samples, found.train, found.train_labels),
        "validation": _files(train.samples, found.validation, train_labels[found.validation]),
        "test": _files(test.samples, found.test, test_labels[found.test]),
    }
    return FolderData(
        name=settings.name,
        classes=len(train.classes),
        channels=3,
        size=settings.image_size or SIZE,
        mean=MEAN,
        std=STD,
        checksums={part: _checksum(files[part], str(settings.root)) for part in PARTS},
        counts={part: len(files[part].paths) for part in PARTS},
        files=files,
        augment=settings.augment,
        workers=min(settings.workers, _cores()),
    )


def _start_method() -> str:
    """How this system starts processes. In a worker of `--workers` the loader would take that worker's way, "spawn".

    Then each of its processes would import torch, which takes seconds, and a loader serves only one epoch.
    """
    return multiprocessing.get_all_start_methods()[0]


def _cores() -> int:
    """The cores that this process may use. With more workers than these, torch warns, and reading is not faster."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def training_transform(augment: str, size: int) -> Any:
    """The transform from an image to augmented pixels, as uint8."""
    from torchvision import transforms as T

    if augment == "none":
        return evaluation_transform(size)
    steps = [T.RandomResizedCrop(size)]
    if augment != "crop":
        steps.append(T.RandomHorizontalFlip())
    if augment == "randaugment":
        steps.append(T.RandAugment())
    return T.Compose([*steps, T.PILToTensor()])


def evaluation_transform(size: int) -> Any:
    """The transform from an image to the pixels of its middle, as uint8."""
    from torchvision import transforms as T

    return T.Compose([T.Resize(round(size / SHOWN)), T.CenterCrop(size), T.PILToTensor()])


def _list(torchvision: Any, root: str | None, name: str) -> Any:
    if root is None or not (Path(root) / name).is_dir():
        expected = "the folder that holds train/ and val/, with a folder of images for each class in both"
        raise missing(expected, root, how_to_name("FOLDER"))
    try:
        return torchvision.datasets.ImageFolder(str(Path(root) / name))
    except OSError as error:
        raise ArgumentError(
            f"data.root: expected a folder of images for each class in {name}/: {one_line(error)}"
        ) from error


def _files(samples: Sequence[tuple[str, int]], chosen: Any, labels: Any) -> Files:
    numbers = tuple(chosen.tolist())
    return Files(tuple(samples[number][0] for number in numbers), tuple(labels.tolist()), numbers)


def _checksum(files: Files, root: str) -> str:
    digest = hashlib.sha256()
    for path, label in zip(files.paths, files.labels, strict=True):
        name = Path(path).relative_to(root).as_posix()
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise ArgumentError(f"data.root: expected images that can be read: {one_line(error)}") from error
        # The name of a file may contain bytes that are not UTF-8.
        digest.update(f"{name}\t{size}\t{label}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
