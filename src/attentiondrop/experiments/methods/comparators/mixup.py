"""Mixup: images and targets are interpolated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....errors import bad_argument
from ....validation import number
from ..comparator import Acting, Comparator

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Mixing(Comparator):
    """Base of comparators that mix the images of a batch."""

    alpha: float = 1.0
    #: The share of batches that are mixed.
    p: float = 1.0
    group = "data"
    perturbs = "images and targets"

    def _check(self) -> None:
        if not number("alpha", self.alpha, 0.0) > 0:
            raise bad_argument("alpha", "a number > 0", self.alpha)
        number("p", self.p, 0.0, 1.0)


@dataclass(frozen=True)
class Mixup(Mixing):
    """Mixes each image and its target with another of the batch, as torchvision's MixUp does it."""

    name = "mixup"
    # 1 is the paper's value for CIFAR, 0.2 for ImageNet, 0.8 with half of the batches comes from recipes for ViT.
    grid = [
        {"alpha": alpha, "p": p}
        for alpha, p in ((1.0, 1.0), (0.2, 1.0), (0.4, 1.0), (0.8, 0.5), (0.2, 0.5), (2.0, 1.0))
    ]
    formula = "lambda * x + (1 - lambda) * x', lambda ~ Beta(alpha, alpha); targets are mixed in the same way"
    reference = "Zhang et al. 2018, mixup"

    def act(self, model: nn.Module) -> Acting:
        """What mixes the batches."""
        from torchvision.transforms import v2

        from ..mixing import MixBatch

        return MixBatch(v2.MixUp(alpha=self.alpha), model, self.name, self.p)
