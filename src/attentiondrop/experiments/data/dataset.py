"""What a data set is to the experiments: two halves of images and labels, and a checksum of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Images `[N, C, H, W]` in float32 and integer labels `[N]`, split once and for all into training and test."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    #: SHA-256 over the four tensors: results of different data never end up in one table.
    checksum: str

    def to(self, device: str) -> Dataset:
        """The same data on `device`."""
        return Dataset(
            self.train_images.to(device),
            self.train_labels.to(device),
            self.test_images.to(device),
            self.test_labels.to(device),
            self.classes,
            self.checksum,
        )
