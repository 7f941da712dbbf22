"""PatchDropout: patches are left out in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....errors import ArgumentError, bad_argument
from ....validation import number
from ..comparator import Comparator

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PatchDropout(Comparator):
    """Every sample loses the share p of its patches before the first block, as timm's PatchDropout does it."""

    p: float = 0.5
    name = "patchdropout"
    group = "hidden"
    grid = [{"p": p} for p in (0.5, 0.1, 0.2, 0.3, 0.4, 0.6)]
    perturbs = "tokens, for each sample"
    formula = "floor((1 - p) * patches) random patches and the class token are kept"
    reference = "Liu et al. 2022, PatchDropout"

    def _check(self) -> None:
        if number("p", self.p, 0.0, 1.0) == 1.0:
            raise bad_argument("p", "a number < 1", self.p)

    def change(self, model: nn.Module) -> None:
        """Put timm's layer into its place in the model."""
        from timm.layers import PatchDropout as Layer
        from torch import nn

        from ..vit_places import prefix_tokens

        if not isinstance(getattr(model, "patch_drop", None), nn.Module):  # (Eva's is of another kind.)
            raise ArgumentError(
                f"{self.name}: expected a model with a place for it (`patch_drop`), as timm's vision transformers of "
                f"images, received {type(model).__name__}"
            )
        # In order, for methods that look at distances.
        model.patch_drop = Layer(self.p, num_prefix_tokens=prefix_tokens(model), ordered=True)
