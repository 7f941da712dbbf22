"""DropConnect: dropout of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comparator import Dropping

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class DropConnect(Dropping):
    """Every pass zeroes weights of the linear layers with probability p and divides the others by 1 - p."""

    name = "dropconnect"
    group = "weights"
    perturbs = "weights of linear layers, for the whole batch"
    formula = "W * Bernoulli(1 - p) / (1 - p), for each element"
    reference = "Wan et al. 2013, Regularization of Neural Networks using DropConnect"
    draws_per_batch = True

    def change(self, model: nn.Module) -> None:
        """Turn the linear layers into layers that drop weights."""
        from ..dropconnect_layers import drop_connections

        drop_connections(model, self.p)
