"""Head pruning by importance, followed by fine-tuning in the rest of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import bad_argument
from ....validation import number
from ..comparator import Acting, Comparator

if TYPE_CHECKING:
    from torch import Tensor, nn


class Importance:
    """A forward hook before the output projection: adds up |output of a head . its gradient| over samples."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def __call__(self, projection: nn.Module, args: tuple[Any, ...]) -> None:
        """Listen to the gradient of the heads' outputs."""
        x: Tensor = args[0]
        if projection.training and x.requires_grad:
            x.register_hook(lambda gradient: self.add(x.detach(), gradient))

    def add(self, x: Tensor, gradient: Tensor) -> None:
        """[batch, tokens, heads * dimensions] both.

        With float16, the loss is scaled up until a gradient overflows. The optimiser leaves that step out. So do we.
        """
        products = (x * gradient).unflatten(-1, (len(self.total), -1))
        found = products.float().sum((1, 3)).abs().sum(0)
        self.total += found.where(found.isfinite().all(), found.new_zeros(()))


class Pruning(Acting):
    """Measures the heads until an epoch, then zeroes what the least important ones contribute, and keeps it zero."""

    on_tensors = ("begin_epoch", "end_step")
    differs = True  # until all processes prune, each adds up the importance in its own data

    def __init__(self, model: nn.Module, share: float, at: float, who: str) -> None:
        import torch

        from ..vit_places import attentions_of

        self.share, self.at, self.who, self.pruned = share, at, who, False
        self._projections: list[Any] = [attention.proj for attention in attentions_of(model, who)]
        heads = [int(attention.num_heads) for attention in attentions_of(model, who)]  # type: ignore[arg-type]
        device = self._projections[0].weight.device
        self.importance = [torch.zeros(count, device=device) for count in heads]
        self.kept = [torch.ones(count, device=device) for count in heads]
        for projection, total in zip(self._projections, self.importance, strict=True):
            projection.register_forward_pre_hook(Importance(total))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Prune before the epoch whose turn it is."""
        if epochs < 2:
            raise bad_argument("training.epochs", f"at least 2 for {self.who}: it prunes between two epochs", epochs)
        if epoch >= first_pruned_epoch(self.at, epochs) and not self.pruned:
            self.prune()

    def prune(self) -> None:
        """Zero the share of all heads whose importance is lowest, relative to the other heads of their layer."""
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for layer in self.importance:  # all processes must prune the same heads
                torch.distributed.all_reduce(layer)
        relative = [layer / layer.norm().clamp_min(1e-12) for layer in self.importance]
        count = round(self.share * sum(map(len, relative)))
        lowest = torch.cat(relative).argsort()[:count]
        kept = torch.ones(sum(map(len, relative)), device=lowest.device).index_fill_(0, lowest, 0.0)
        for own, new in zip(self.kept, kept.split([len(layer) for layer in relative]), strict=True):
            own.copy_(new)
        self.pruned = True
        self.end_step()

    def end_step(self) -> None:
        """Zero the columns of the projection that read a pruned head, so that evaluation needs no mask."""
        import torch

        with torch.no_grad():
            for projection, kept in zip(self._projections, self.kept, strict=True):
                weight = projection.weight.unflatten(-1, (len(kept), -1))
                weight *= kept[:, None].to(weight.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Importance, and what was pruned."""
        tensors = {"importance": self.importance, "kept": self.kept}
        return {name: [one.clone() for one in each] for name, each in tensors.items()} | {"pruned": self.pruned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for own, stored in ((self.importance, state["importance"]), (self.kept, state["kept"])):
            for tensor, value in zip(own, stored, strict=True):
                tensor.copy_(value)
        self.pruned = state["pruned"]


def first_pruned_epoch(at: float, epochs: int) -> int:
    """The first epoch, counted from zero, that trains the pruned model: one at least before it, and itself."""
    return min(max(round(at * epochs), 1), epochs - 1)


@dataclass(frozen=True)
class HeadPruning(Comparator):
    """After the share `at` of the epochs, the least important `share` of the heads is cut; the rest is fine-tuned."""

    share: float = 0.2
    at: float = 0.5
    name = "headpruning"
    group = "weights"
    grid = [
        {"share": share, "at": at}
        for share, at in ((0.2, 0.5), (0.1, 0.5), (0.4, 0.5), (0.6, 0.5), (0.2, 0.25), (0.4, 0.75))
    ]
    perturbs = "heads, permanently"
    formula = (
        "I_h = mean over samples of |output of h . its gradient|, divided by the norm of I in its layer; "
        "the heads with the lowest I_h are pruned"
    )
    reference = "Michel et al. 2019, Are Sixteen Heads Really Better than One?"
    training_only = False

    def _check(self) -> None:
        number("share", self.share, 0.0, 1.0)
        number("at", self.at, 0.0, 1.0)

    def check_training(self, settings: Any) -> None:
        """An average of the weights is refused: it would bring pruned heads back."""
        if settings.ema is not None:
            raise bad_argument("training.ema", f"null with {self.name}: an average has what was pruned", settings.ema)
        averaged = settings.epochs - first_pruned_epoch(self.at, settings.epochs)
        if settings.average_last > averaged:
            expected = f"at most {averaged} with {self.name}: earlier epochs have what was pruned"
            raise bad_argument("training.average_last", expected, settings.average_last)

    def counts_from(self, epochs: int) -> int:
        """Only epochs of the pruned model may be chosen."""
        return first_pruned_epoch(self.at, epochs)

    def act(self, model: nn.Module) -> Acting:
        """What measures and prunes."""
        return Pruning(model, self.share, self.at, self.name)
