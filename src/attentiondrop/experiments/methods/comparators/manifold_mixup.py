"""Manifold Mixup: hidden states and targets are interpolated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comparator import Acting
from .mixup import Mixing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...tasks.interface import Batch


class MixHidden:
    """A forward hook before a block (or the model): its input is mixed with that of the sample before it."""

    def __init__(self, shares: Tensor, place: int) -> None:
        self.shares, self.place = shares, place

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The mixed input."""
        if not module.training:
            return None
        x, share = args[0], self.shares[self.place].to(args[0].dtype)
        return (x * share + x.roll(1, 0) * (1 - share), *args[1:])


class ManifoldMixing(Acting):
    """Chooses a place and a share for each step. Both are in tensors, so a captured step reads them anew.

    The share of all places but one is 1, which changes nothing there.
    """

    on_tensors = ("targets",)

    def __init__(self, model: nn.Module, alpha: float, p: float, who: str) -> None:
        import torch

        from ..vit_places import blocks_of, classes_of

        places = [model, *blocks_of(model, who)]
        self.classes, self.p, self.who = classes_of(model, who), p, who
        self.shares = torch.ones(len(places), device=next(model.parameters()).device)
        self._beta = torch.distributions.Beta(alpha, alpha)
        for place, module in enumerate(places):
            module.register_forward_pre_hook(MixHidden(self.shares, place))

    def batch(self, batch: Batch) -> Batch:
        """The same images with class probabilities as targets, after the draws for their step."""
        import torch

        from ...tasks.interface import Batch
        from ..vit_places import images_of

        images, targets = images_of(batch, self.who)
        self.shares.fill_(1.0)
        if torch.rand(()).item() < self.p:
            place = int(torch.randint(len(self.shares), ()))
            self.shares[place] = float(self._beta.sample())
        return Batch(images, self._soft(targets))

    def targets(self, targets: Tensor) -> Tensor:
        """Class probabilities, mixed by the share of the step. It mixes the same pairs as the hooks."""
        soft, share = self._soft(targets), self.shares.min()  # the other shares are 1
        return soft * share + soft.roll(1, 0) * (1 - share)

    def _soft(self, targets: Tensor) -> Tensor:
        import torch

        return targets if targets.is_floating_point() else torch.nn.functional.one_hot(targets, self.classes).float()


@dataclass(frozen=True)
class ManifoldMixup(Mixing):
    """Mixes the images or the input of one random block, and the targets, with those of another sample."""

    alpha: float = 2.0
    name = "manifoldmixup"
    grid = [
        {"alpha": alpha, "p": p}
        for alpha, p in ((2.0, 1.0), (0.2, 1.0), (1.0, 1.0), (4.0, 1.0), (2.0, 0.5), (0.2, 0.5))
    ]
    perturbs = "hidden states and targets"
    formula = "h_l = lambda * h_l + (1 - lambda) * h'_l in a random layer l; targets are mixed in the same way"
    reference = "Verma et al. 2019, Manifold Mixup"

    def act(self, model: nn.Module) -> Acting:
        """What draws for each step."""
        return ManifoldMixing(model, self.alpha, self.p, self.name)
