"""Linear layers for DropConnect: every training pass zeroes some of their weights.

Our own code, since no well-kept library does this to existing modules (timm's `drop_connect` is stochastic depth).
"""

from __future__ import annotations

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
    """Let every `nn.Linear` of `model` drop its weights at rate `p`. Returns how many layers were changed.

    Parameters and `state_dict` keys stay. The projections of `nn.MultiheadAttention` are not changed.

    >>> layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> drop_connections(layers, p=0.5)
    2
    """
    # Only the exact class: a subclass may compute something else.
    found = [module for module in model.modules() if type(module) is nn.Linear]
    if not found:
        raise ArgumentError(f"dropconnect: expected a model with nn.Linear layers, received {type(model).__name__}")
    for module in found:
        module.__class__ = DropConnectLinear
        module.connection_drop = p  # type: ignore[assignment]
    return len(found)
