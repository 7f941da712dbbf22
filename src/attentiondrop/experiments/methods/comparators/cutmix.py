"""CutMix: a box of an image is replaced by that of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comparator import Acting
from .mixup import Mixing

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CutMix(Mixing):
    """Replaces a box of each image by that of another of the batch, as torchvision's CutMix does it."""

    name = "cutmix"
    # The paper has alpha 1, and mixes all batches on ImageNet and half of them on CIFAR.
    grid = [
        {"alpha": alpha, "p": p}
        for alpha, p in ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.2, 1.0), (2.0, 1.0), (0.2, 0.5))
    ]
    formula = (
        "a box of x is replaced by the same box of x', and targets are mixed in the ratio of the areas; "
        "the box covers the share 1 - Beta(alpha, alpha) of the image"
    )
    reference = "Yun et al. 2019, CutMix"

    def act(self, model: nn.Module) -> Acting:
        """What mixes the batches."""
        from torchvision.transforms import v2

        from ..mixing import MixBatch

        return MixBatch(v2.CutMix(alpha=self.alpha), model, self.name, self.p)
