"""Linear layers for DropConnect: every training pass zeroes some of their weights.

Our own code, since no well-kept library does this to existing modules (timm's `drop_connect` is stochastic depth).
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import ArgumentError


class DropConnectLinear(nn.Linear):
    """An `nn.Linear` that drops weights in training. In evaluation it is a plain `nn.Linear`."""

    connection_drop: float = 0.0

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name nn.Linear gives it
        """Each pass draws one mask of the weights for the whole batch. The expected weights stay the same."""
        return F.linear(input, F.dropout(self.weight, self.connection_drop, self.training), self.bias)


def drop_connections(model: nn.Module, p: float) -> int:
    """Let every linear layer of `model` drop its weights at rate `p`. Returns how many layers were changed.

    They are each `nn.Linear`, and what GPT-2 of transformers has in its place. Parameters and `state_dict` keys stay.
    The projections of `nn.MultiheadAttention` are not changed.

    >>> layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> drop_connections(layers, p=0.5)
    2
    """
    # Only the exact classes: a subclass may compute something else.
    dropping: dict[type[Any], type[nn.Module]] = {nn.Linear: DropConnectLinear}
    # Only a model of transformers has its layers, so it is loaded then.
    if (library := sys.modules.get("transformers.pytorch_utils")) is not None:
        dropping[library.Conv1D] = _dropping_conv1d(library.Conv1D)
    found = [module for module in model.modules() if type(module) in dropping]
    if not found:
        raise ArgumentError(f"dropconnect: expected a model with nn.Linear layers, received {type(model).__name__}")
    for module in found:
        module.__class__ = dropping[type(module)]
        module.connection_drop = p  # type: ignore[assignment]
    return len(found)


@cache
def _dropping_conv1d(plain: Any) -> type[nn.Module]:
    """transformers' `Conv1D`, a linear layer whose weight is stored transposed, in a version that drops weights."""

    def forward(layer: Any, x: Tensor) -> Tensor:
        if not layer.training:
            found: Tensor = plain.forward(layer, x)
            return found
        return F.linear(x, F.dropout(layer.weight, layer.connection_drop).T, layer.bias)

    return type("DropConnectConv1D", (plain,), {"forward": forward, "connection_drop": 0.0, "__module__": __name__})
