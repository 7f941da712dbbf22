"""The attention of a model for one example: as it is, and as a method changes it in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...specs import HardMasking, Spec
from ...torch import attach
from ...torch.call.one_call import Call
from ...torch.call.watching import Turn
from ...torch.eager.attention import eager_attention
from .eval_mode import evaluating
from .exhibits import AttentionMap
from .interface import forward


class _Keep:
    """A watcher that keeps the call."""

    call: Call | None = None

    def turn(self, drop: Any, seed: Any, heads: int) -> Turn:
        """The rates that a call uses: those it has."""
        return Turn(drop)

    def measure(self, call: Call, new: Tensor | None = None) -> None:
        """Keep the call."""
        self.call = call


class _Weights(NamedTuple):
    """Weights [batch, heads, queries, keys]."""

    before: Tensor
    after: Tensor


@torch.no_grad()
def last_attention(model: nn.Module, inputs: Any, spec: Spec | None) -> _Weights:
    """The weights of the last attention site that the model runs, with the same inputs before and after the method.

    The rest of the model runs as in evaluation. Torch's global generators are left as they were.
    """
    attachment = attach(model, HardMasking(p=0.0, k=1) if spec is None else spec)
    devices = [x.device for x in inputs.values() if isinstance(x, Tensor) and x.is_cuda][:1]
    watcher: Any = _Keep()
    try:
        attachment.set_progress(1.0)
        with torch.random.fork_rng(devices=devices), evaluating(model):
            torch.manual_seed(0)
            site = attachment.sites[-1]
            site.monitor = watcher
            model.get_submodule(site.name).training = True  # of this module alone, and not of its parts
            forward(model.forward, inputs)
    finally:
        attachment.remove()
    # Without the dropout that the model itself may have.
    call = watcher.call._replace(dropout_p=0.0)
    return _Weights(eager_attention(call._replace(leaves=[]))[1], eager_attention(call)[1])


def attention_map(
    title: str, model: nn.Module, inputs: Any, spec: Spec | None, queries: Sequence[str], keys: Sequence[str]
) -> AttentionMap:
    """The first head of the last attention site, for the first example."""
    found = last_attention(model, inputs, spec)
    after = None if spec is None else _plain(found.after)
    return AttentionMap(title, tuple(queries), tuple(keys), _plain(found.before), after)


def _plain(weights: Tensor) -> tuple[tuple[float, ...], ...]:
    """The first head of the first example, with three digits."""
    return tuple(tuple(round(value, 3) for value in row) for row in weights[0, 0].tolist())
