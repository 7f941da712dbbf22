"""DropConnect: every pass in training uses the linear layers with some of their weights zeroed.

By hand, since no well-kept library has it for torch modules as they are (timm's `drop_connect` is stochastic depth).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import ArgumentError


class DropConnectLinear(nn.Linear):
    """`nn.Linear` whose weights are zeroed at a rate in training; in evaluation it is `nn.Linear`."""

    connection_drop: float = 0.0

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name nn.Linear gives it
        """One mask of the weights for the whole batch, drawn anew in each pass, expectation kept."""
        return F.linear(input, F.dropout(self.weight, self.connection_drop, self.training), self.bias)


def drop_connections(model: nn.Module, p: float) -> int:
    """Let every `nn.Linear` of `model` drop its weights at rate `p`; says how many there are.

    Parameters and `state_dict` keys stay. `nn.MultiheadAttention` hides its projections from this.

    >>> layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> drop_connections(layers, p=0.5)
    2
    """
    # The exact class: a subclass may compute something else.
    found = [module for module in model.modules() if type(module) is nn.Linear]
    if not found:
        raise ArgumentError(f"dropconnect: expected a model with nn.Linear layers, received {type(model).__name__}")
    for module in found:
        module.__class__ = DropConnectLinear
        module.connection_drop = p  # type: ignore[assignment]
    return len(found)
