"""Which images a run trains, validates and tests on, in plain values: the `data` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .....errors import bad_argument
from .....validation import integer, number, one_of
from ...interface import DataSettings

#: The data sets there are. `fake` is made up on the spot, `npz` is a file of the user's own.
NAMES = ("digits", "fashion-mnist", "cifar10", "cifar100", "imagenet", "fake", "npz")
#: What happens to training images. `randaugment` works on images from files, so only for `imagenet`.
AUGMENTATIONS = ("none", "flip-crop", "crop", "randaugment")
#: The others keep the size that they have.
RESIZED = ("imagenet", "fake")


@dataclass(frozen=True)
class ImageSettings(DataSettings):
    """Every choice about the data, checked at once; whether files are there is only known when they are loaded.

    The parts are made in this order: `validation` is held out of the training set, `train_fraction` keeps a share of
    what remains, `limit` shortens all three parts, `label_noise` changes labels of the training part. Each is a draw of
    its own, so the validation part does not depend on `train_fraction` or `label_noise`, a smaller `train_fraction` or
    `limit` gives a subset of a larger one, and more `label_noise` keeps the wrong labels that less of it makes.

    Attributes:
        name: one of `NAMES`.
        root: torchvision's root folder, ImageNet's folder (with train/ and val/), or the .npz file.
        download: let torchvision fetch CIFAR or Fashion-MNIST into `root`.
        validation: share of the training set that is held out, stratified, for every choice.
        train_fraction: share of the rest that is trained on, stratified.
        label_noise: share of the training labels that become another class, each of the others equally likely.
        limit: at most this many images of each part, stratified, for tests and quick looks.
        augment: one of `AUGMENTATIONS`. In memory, "crop" pads by 4 black pixels and crops at random, "flip-crop" also
            mirrors half of the images. For `imagenet` they are a random resized crop, without and with mirroring, and
            "randaugment" is the latter and RandAugment.
        image_size: pixels of a side, for `imagenet` (224 if None) and `fake` (32 if None).
        workers: processes that read images of `imagenet`; 0 reads them in the process that trains.
        seed: of all that is drawn here; the seeds of a comparison share it, they are not about which images there are.

    Example:
        >>> ImageSettings("cifar10", root="datasets", train_fraction=0.1, label_noise=0.2).validation
        0.1
        >>> ImageSettings(label_noise=1.5)
        Traceback (most recent call last):
        attentiondrop.errors.ArgumentError: data.label_noise: expected a number in [0, 1], received 1.5
    """

    name: str = "digits"
    root: str | None = None
    download: bool = False
    validation: float = 0.1
    train_fraction: float = 1.0
    label_noise: float = 0.0
    limit: int | None = None
    augment: str = "none"
    image_size: int | None = None
    workers: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("data.name", self.name, NAMES)
        if self.root is not None and not (isinstance(self.root, str) and self.root):
            raise bad_argument("data.root", "the path of a folder or file as text, or none", self.root)
        if not isinstance(self.download, bool):
            raise bad_argument("data.download", "true or false", self.download)
        self._set("validation", _share("data.validation", self.validation, below_one=True))
        self._set("train_fraction", _share("data.train_fraction", self.train_fraction, below_one=False))
        self._set("label_noise", number("data.label_noise", self.label_noise, 0.0, 1.0))
        one_of("data.augment", self.augment, AUGMENTATIONS)
        if self.augment == "randaugment" and self.name != "imagenet":
            raise bad_argument("data.augment", f"none, crop or flip-crop for {self.name}", self.augment)
        if self.image_size is not None and self.name not in RESIZED:
            raise bad_argument("data.image_size", f"none, {self.name} keeps its own size", self.image_size)
        for name, minimum in (("limit", 1), ("image_size", 1), ("workers", 0), ("seed", 0)):
            if getattr(self, name) is not None or name in ("workers", "seed"):
                self._set(name, integer(f"data.{name}", getattr(self, name), minimum))

    def _set(self, name: str, value: float) -> None:
        """Keep the plain number: 1e3 from a recipe and 1000 are the same setting."""
        object.__setattr__(self, name, value)


def _share(name: str, value: Any, below_one: bool) -> float:
    """A share of which something, and with `below_one` not everything, is left."""
    expected = "a number in (0, 1)" if below_one else "a number in (0, 1]"
    try:
        share = number(name, value, 0.0, 1.0)
    except ValueError:
        raise bad_argument(name, expected, value) from None
    if share == 0.0 or (below_one and share == 1.0):
        raise bad_argument(name, expected, value)
    return share
