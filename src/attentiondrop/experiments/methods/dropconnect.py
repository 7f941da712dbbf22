"""DropConnect: weights are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .comparator import Dropping

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class DropConnect(Dropping):
    """Weights of the linear layers are zeroed anew in every pass, and the others grow by 1 / (1 - p)."""

    name = "dropconnect"

    def change(self, model: nn.Module) -> None:
        """Swap the class of the linear layers."""
        from .dropconnect_layers import drop_connections

        drop_connections(model, self.p)
