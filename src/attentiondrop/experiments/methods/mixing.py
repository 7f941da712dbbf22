"""Batches of mixed images with soft targets, by torchvision's transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..tasks.interface import Batch
from .comparator import Acting
from .vit_places import classes_of, images_of


class MixBatch(Acting):
    """Mixes a batch with probability `p`. Targets are class probabilities in every batch, mixed or not.

    It runs before the step, so a captured step only sees other numbers in its inputs.
    """

    def __init__(self, transform: Any, model: nn.Module, who: str, p: float) -> None:
        self.transform, self.classes, self.who, self.p = transform, classes_of(model, who), who, p

    def batch(self, batch: Batch) -> Batch:
        """The images and their targets, each mixed with those of another image of the batch."""
        images, targets = images_of(batch, self.who)
        soft = targets if targets.is_floating_point() else torch.nn.functional.one_hot(targets, self.classes)
        soft = soft.to(torch.float32)
        if torch.rand(()).item() >= self.p:
            return Batch(images, soft)
        return Batch(*self.transform(images, soft))
