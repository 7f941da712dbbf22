"""The `data` section of a recipe for images: what a run trains, validates and tests on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .....errors import bad_argument
from .....validation import integer, number, one_of
from ...draw_keys import key
from ...interface import DataSettings

#: All data sets. `fake` is generated, `npz` is a file of the user, `folder` are image files of the user.
NAMES = ("digits", "fashion-mnist", "cifar10", "cifar100", "imagenet", "fake", "npz", "folder")
#: Data that stays in files: a folder for each class in train/ and in val/.
FILES = ("imagenet", "folder")
#: Augmentations that mirror, crop, and then do operations that they draw for each image: for images in memory.
POLICIES = ("autoaugment", "trivialaugment")
#: How training images are augmented. `randaugment` works on image files, so only for `FILES`.
AUGMENTATIONS = ("none", "flip-crop", "crop", "randaugment", *POLICIES)
#: Data sets whose image size can be chosen.
RESIZED = (*FILES, "fake")


@dataclass(frozen=True)
class ImageSettings(DataSettings):
    """Settings of the data. Values are checked at once, files only when they are loaded.

    The parts are made in this order: `validation` is held out of the training set, `train_fraction` keeps a share of
    the rest, `limit` shortens all three parts, `label_noise` changes labels of the training part. Each step draws
    independently. So the validation part does not depend on `train_fraction` or `label_noise`, a smaller
    `train_fraction` or `limit` gives a subset, and more `label_noise` keeps all wrong labels that less of it makes.

    Attributes:
        name: one of `NAMES`.
        root: torchvision's root folder, the .npz file, or for `imagenet` and `folder` the folder with train/CLASS/*.png
            and val/CLASS/*.png (or other image files). There val/ is the test part, and the validation part is held
            out of train/.
        download: let torchvision fetch CIFAR or Fashion-MNIST into `root`.
        validation: share of the training set that is held out to choose epochs and settings, stratified.
        train_fraction: share of the rest that is used for training, stratified.
        label_noise: share of the training labels that are replaced by another class; all others are equally likely.
        limit: at most this many images in each part, stratified, for tests and quick trials.
        augment: one of `AUGMENTATIONS`. For data in memory, "crop" pads by 4 black pixels and crops at random;
            "flip-crop" also mirrors half of the images. For image files, "crop" is a random resized crop, "flip-crop"
            also mirrors, and "randaugment" adds RandAugment to both. For images in memory of 8-bit pixels,
            "autoaugment" is "flip-crop" and then AutoAugment's policy for CIFAR-10, and "trivialaugment" the same with
            TrivialAugment.
        mirror: for "autoaugment" and "trivialaugment": whether they mirror. (Older versions did not, by mistake.) The
            name of the other augmentations says whether they do.
        erase: share of the training images of which a random box gets the mean colour; for images in memory.
        mix: share of the training batches that are mixed, half of them by Mixup and half by CutMix, both with alpha 1;
            for images in memory and a single process.
        image_size: height and width in pixels, for `imagenet` and `folder` (224 if None) and `fake` (32 if None).
        workers: processes that read image files, at most one for each core; with 0 the training process reads them.
        seed: for all draws listed here. All seeds of a comparison share it, so they use the same images.
        resplit: each seed of a comparison splits anew: training and validation part, fraction, label noise. All methods
            with one seed still share their images. Without `limit`, the test part stays the same. For images in memory.

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
    erase: float = 0.0
    mix: float = 0.0
    resplit: bool = False
    mirror: bool = True

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
        if self.augment == "randaugment" and self.name not in FILES:
            known = "none, crop, flip-crop, autoaugment or trivialaugment"
            raise bad_argument("data.augment", f"{known} for {self.name}", self.augment)
        for name in ("erase", "mix"):
            self._set(name, number(f"data.{name}", getattr(self, name), 0.0, 1.0))
        for name in ("resplit", "mirror"):
            if not isinstance(getattr(self, name), bool):
                raise bad_argument(f"data.{name}", "true or false", getattr(self, name))
        if self.augment not in POLICIES:
            self._set("mirror", False)  # nothing asks for it: one value for all, so that runs are the same runs
        if self.name in FILES:
            self._refuse_for_files()
        if self.image_size is not None and self.name not in RESIZED:
            raise bad_argument("data.image_size", f"none, {self.name} keeps its own size", self.image_size)
        for name, minimum in (("limit", 1), ("image_size", 1), ("workers", 0), ("seed", 0)):
            if getattr(self, name) is not None or name in ("workers", "seed"):
                self._set(name, integer(f"data.{name}", getattr(self, name), minimum))

    def without_effect(self) -> tuple[str, ...]:
        """`mirror`, where the name of the augmentation says whether it mirrors."""
        return () if self.augment in POLICIES else ("mirror",)

    def for_seed(self, seed: int) -> ImageSettings:
        """The settings of the data that a run with this seed uses."""
        if not self.resplit:
            return self
        return dataclasses.replace(self, seed=key("split", self.seed, seed))

    def _refuse_for_files(self) -> None:
        if self.augment in POLICIES:
            raise bad_argument("data.augment", f"none, crop, flip-crop or randaugment for {self.name}", self.augment)
        for name, usual in (("erase", 0.0), ("mix", 0.0), ("resplit", False)):
            if getattr(self, name) != usual:
                raise bad_argument(
                    f"data.{name}", f"{usual} for {self.name}, which stays in files", getattr(self, name)
                )

    def _set(self, name: str, value: float) -> None:
        """Store the validated number, so that 1e3 in a recipe is the same setting as 1000."""
        object.__setattr__(self, name, value)


def _share(name: str, value: Any, below_one: bool) -> float:
    """Check a share: above 0, and at most 1, or below 1 with `below_one`."""
    expected = "a number in (0, 1)" if below_one else "a number in (0, 1]"
    try:
        share = number(name, value, 0.0, 1.0)
    except ValueError:
        raise bad_argument(name, expected, value) from None
    if share == 0.0 or (below_one and share == 1.0):
        raise bad_argument(name, expected, value)
    return share
