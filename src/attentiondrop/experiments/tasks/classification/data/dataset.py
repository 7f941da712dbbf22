"""Images in three parts, in batches that depend only on seed and epoch."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from .....errors import ArgumentError, bad_argument
from .....validation import integer, one_of
from ...draw_keys import key
from ...interface import Batch
from .augment import draw_moves, move
from .augment_policies import draw_operations
from .erase_boxes import draw_boxes, erase
from .image_settings import POLICIES, ImageSettings
from .mix_images import mixed
from .source import Images, Labels, Source
from .splitting import checksum, split, stratified_order

PARTS = ("train", "validation", "test")
#: Batch size for reading a whole part.
_AT_ONCE = 1024
#: Decides which images `some` chooses.
_SOME = 0
#: Training images are augmented in groups of batches of about this many bytes as float32: fewer and larger operations.
_GROUP_BYTES = 2**25

Some = TypeVar("Some", bound="ImageData")

Batches = Iterator[Batch]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData(ABC):
    """Images and labels in three parts. Batches have float32 images [N, C, S, S] and int64 labels [N], on `device`.

    Training order and augmentation depend only on (seed, epoch), and torch's global generators are not touched. So a
    run can resume at any epoch without a stored state. With `world` processes, each `rank` gets a contiguous share of
    every batch: the shares of all ranks together are, bit for bit, the batch of a single process.
    """

    name: str
    classes: int
    channels: int
    #: Height and width in pixels.
    size: int
    #: Mean and standard deviation of each channel over the training part, for images in [0, 1].
    mean: tuple[float, ...]
    std: tuple[float, ...]
    #: Part -> SHA-256, after limiting and label noise. With `resplit`, of the published sets, which all seeds share.
    checksums: dict[str, str]
    #: Part -> number of images.
    counts: dict[str, int]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    #: The share of training batches that are mixed, with probabilities as targets in all batches.
    mix: float = 0.0

    #: The fields that are dicts with a key for each part.
    BY_PART: ClassVar[tuple[str, ...]] = ("checksums", "counts")

    @property
    def words(self) -> str:
        """A description of the images, for error messages."""
        return f"images of {self.channels} x {self.size} x {self.size} pixels"

    @property
    def bytes_to_train(self) -> int:
        """The size of the training images as float32, in bytes."""
        return 4 * self.counts["train"] * self.channels * self.size**2

    def having(self: Some, *parts: str) -> Some:
        """The data with only these parts, so that code which gets it cannot use the others, not even by mistake."""
        kept = {name: {part: getattr(self, name)[part] for part in parts} for name in self.BY_PART}
        return dataclasses.replace(self, **kept)  # type: ignore[arg-type]

    @abstractmethod
    def to(self, device: str | torch.device) -> ImageData:
        """The same data with batches on `device`."""

    @abstractmethod
    def _train(self, order: Tensor, shares: Sequence[slice], seed: int, epoch: int) -> Batches:
        """Batches of the training images `order[share]`, augmented, in [0, 1]."""

    @abstractmethod
    def _plain(self, part: str, shares: Sequence[slice | list[int]]) -> Batches:
        """Batches of images of a part, in [0, 1]."""

    @abstractmethod
    def labels_of(self, part: str) -> Labels:
        """The labels of a part, in order."""

    def steps(self, batch_size: int) -> int:
        """The number of batches in an epoch. An incomplete last batch is left out, unless it is the only one."""
        return max(1, self.counts["train"] // integer("batch_size", batch_size, 1))

    def train_batches(self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1) -> Batches:
        """One epoch of shuffled, augmented and normalised batches; `batch_size` counts the images of all ranks."""
        count, steps = self.counts["train"], self.steps(batch_size)
        batch_size = int(batch_size)
        _check_rank(rank, world)
        # Gradients are averaged over ranks. That is the gradient of the batch only if all shares are equal.
        if min(batch_size, count) % world:
            raise bad_argument("batch_size", f"batches that {world} processes share equally", min(batch_size, count))
        order = torch.randperm(count, generator=torch.Generator().manual_seed(key("order", seed, epoch)))
        shares = [_share(step * batch_size, min(count, (step + 1) * batch_size), rank, world) for step in range(steps)]
        found = self._normalised(self._train(order, shares, seed, epoch))
        if self.mix == 0.0:
            return found
        if world > 1:
            raise ArgumentError(f"data.mix: expected 0 with {world} processes, received {self.mix:g}")
        return mixed(found, self.mix, self.classes, seed, epoch)

    def batches(self, part: str, batch_size: int, *, normalise: bool = True, rank: int = 0, world: int = 1) -> Batches:
        """All batches of a part, in order, without augmentation. A part that the data does not hold is an error.

        All ranks get the same number of batches, so that collective calls match; the last share of a rank may be
        empty. With `normalise=False` images stay in [0, 1].
        """
        one_of("part", part, tuple(self.counts))
        count, batch_size = self.counts[part], integer("batch_size", batch_size, 1)
        _check_rank(rank, world)
        starts = range(0, count, batch_size)
        ends = [(start, min(count, start + batch_size)) for start in starts]
        found = self._plain(part, [_share(start, end, rank, world) for start, end in ends])
        return self._normalised(found) if normalise else found

    def normalise(self, images: Tensor) -> Tensor:
        """Images [..., C, S, S] in [0, 1], normalised for the model: minus `mean`, divided by `std`."""
        return (images - _per_channel(self.mean, images.device)) / _per_channel(self.std, images.device)

    def published(self, part: str) -> Batches:
        """A whole part in order, in [0, 1]. No other part has an influence on it."""
        return self.batches(part, _AT_ONCE, normalise=False)

    def independent(self, part: str) -> Batch:
        """A whole part at once, in [-1, 1]. Not normalised, since `mean` and `std` come from the training part."""
        images, labels = zip(*self.published(part), strict=True)
        return Batch(2.0 * torch.cat(images) - 1.0, torch.cat(labels))

    def some(self, part: str, examples: int, batch_size: int) -> Batches:
        """At most so many images of a part, in [0, 1]: always the same ones, with the classes in about their shares."""
        chosen = sorted(stratified_order(self.labels_of(part), _SOME)[:examples].tolist())
        return self._plain(part, [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)])

    def sample(self, examples: int, seed: int) -> Batch:
        """Random examples of the training part, without augmentation."""
        count = self.counts["train"]
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.zeros(count, dtype=torch.bool)
        chosen[torch.randperm(count, generator=generator)[:examples]] = True
        found: list[Batch] = []
        start = 0
        for images, labels in self.batches("train", _AT_ONCE):
            here = chosen[start : start + len(labels)].to(labels.device)
            found.append(Batch(images[here], labels[here]))
            start += len(labels)
        return Batch(torch.cat([batch.inputs for batch in found]), torch.cat([batch.targets for batch in found]))

    def _normalised(self, batches: Batches) -> Batches:
        return (Batch(self.normalise(images), labels) for images, labels in batches)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayData(ImageData):
    """Images that are kept in memory, in the type in which they were read; batches are converted to float32.

    `to` moves all images to a device. Batches are then chosen, augmented and normalised there.
    """

    images: dict[str, Tensor]
    labels: dict[str, Tensor]
    augment: str
    #: Of the training images and labels that the seed drew, if `checksums` are those of the published sets.
    drawn: str | None = None
    mirror: bool = False
    erase: float = 0.0

    BY_PART: ClassVar[tuple[str, ...]] = (*ImageData.BY_PART, "images", "labels")

    @classmethod
    def build(cls, source: Source, settings: ImageSettings) -> ArrayData:
        """Split the images of a source into parts."""
        kind = source.train_images
        if settings.augment in POLICIES and (kind.dtype != np.uint8 or kind.shape[1] not in (1, 3)):
            received = f"{kind.shape[1]} channels of {kind.dtype}"
            raise bad_argument("data.augment", f"images of 1 or 3 channels of uint8 for {settings.augment}", received)
        found = split(source.train_labels, source.test_labels, source.classes, settings)
        parts = {
            "train": (source.train_images[found.train], found.train_labels),
            "validation": (source.train_images[found.validation], source.train_labels[found.validation]),
            "test": (source.test_images[found.test], source.test_labels[found.test]),
        }
        mean, std = channel_statistics(parts["train"][0])
        return cls(
            name=settings.name,
            classes=source.classes,
            channels=source.train_images.shape[1],
            size=source.train_images.shape[2],
            mean=mean,
            std=std,
            checksums=_published(source) if settings.resplit else {part: checksum(*parts[part]) for part in parts},
            drawn=checksum(*parts["train"]) if settings.resplit else None,
            counts={part: len(labels) for part, (_, labels) in parts.items()},
            images={part: torch.from_numpy(images) for part, (images, _) in parts.items()},
            labels={part: torch.from_numpy(labels) for part, (_, labels) in parts.items()},
            augment=settings.augment,
            mirror=settings.mirror,
            erase=settings.erase,
            mix=settings.mix,
        )

    def to(self, device: str | torch.device) -> ArrayData:
        """A copy with images and labels on `device`."""
        device = torch.device(device)
        images = {part: x.to(device) for part, x in self.images.items()}
        labels = {part: x.to(device) for part, x in self.labels.items()}
        return dataclasses.replace(self, device=device, images=images, labels=labels)

    def _train(self, order: Tensor, shares: Sequence[slice], seed: int, epoch: int) -> Batches:
        images, labels, count = self.images["train"], self.labels["train"], len(order)
        moves = draw_moves(self.augment, count, seed, epoch, self.mirror)
        operations = draw_operations(self.augment, count, self.size, seed, epoch)
        boxes = draw_boxes(self.erase, count, self.size, seed, epoch)
        colour = _per_channel(self.mean, self.device)
        for group in _grouped(shares, _GROUP_BYTES // (4 * self.channels * self.size**2)):
            places = torch.cat([torch.arange(share.start, share.stop) for share in group])
            # The host never waits here: the device would have nothing to do until the next batch is ready.
            which = order[places].to(self.device, non_blocking=True)
            chosen = images[which]
            if moves is not None:
                chosen = move(chosen, moves.part(places).to(self.device))
            if operations is not None:
                chosen = operations.apply(chosen, places)
            chosen = unit_range(chosen)
            if boxes is not None:
                chosen = erase(chosen, boxes.part(places).to(self.device), colour)
            lengths = [share.stop - share.start for share in group]
            yield from map(Batch, chosen.split(lengths), labels[which].split(lengths))

    def labels_of(self, part: str) -> Labels:
        """The labels of a part, in order."""
        return np.asarray(self.labels[part].cpu(), dtype=np.int64)

    def _plain(self, part: str, shares: Sequence[slice | list[int]]) -> Batches:
        for share in shares:
            yield Batch(unit_range(self.images[part][share]), self.labels[part][share])


def _published(source: Source) -> dict[str, str]:
    """Checksums that do not depend on how the published training set is split."""
    train = checksum(source.train_images, source.train_labels)
    # Both parts come from the same images, but they are not the same part.
    validation = hashlib.sha256(f"{train} validation".encode()).hexdigest()
    return {"train": train, "validation": validation, "test": checksum(source.test_images, source.test_labels)}


def _grouped(shares: Sequence[slice], most: int) -> Iterator[list[slice]]:
    """The shares in groups of at most `most` examples, but at least one share."""
    group: list[slice] = []
    for share in shares:
        if group and sum(one.stop - one.start for one in (*group, share)) > most:
            yield group
            group = []
        group.append(share)
    if group:
        yield group


def unit_range(images: Tensor) -> Tensor:
    """Images as float32 in [0, 1]."""
    # In place: a second copy of a large group would count in the peak of the GPU's memory.
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of [N, C, S, S] in [0, 1]. A deviation of zero becomes 1."""
    means: list[float] = []
    deviations: list[float] = []
    for channel in np.moveaxis(images, 1, 0):
        if images.dtype == np.uint8:
            # A histogram is exact and needs no float64 copy of all images.
            counts = np.bincount(channel.ravel(), minlength=256) / channel.size
            values = np.arange(256) / 255
        else:
            values = channel.ravel().astype(np.float64)
            counts = np.full(values.shape, 1 / values.size)
        mean = float(values @ counts)
        deviation = float(np.sqrt((values - mean) ** 2 @ counts))
        means.append(mean)
        deviations.append(deviation if deviation > 1e-6 else 1.0)
    return tuple(means), tuple(deviations)


@functools.cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Constants to broadcast over images, made once per device. They can be used where gradients are taken."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def _share(start: int, stop: int, rank: int, world: int) -> slice:
    """The share of `rank` in the batch from `start` to `stop`."""
    count = stop - start
    return slice(start + count * rank // world, start + count * (rank + 1) // world)


def _check_rank(rank: int, world: int) -> None:
    if integer("rank", rank, 0) >= integer("world", world, 1):
        raise ArgumentError(f"rank: expected an integer below world={world}, received {rank}")
