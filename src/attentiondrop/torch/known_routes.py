"""The routes of calls on a CPU that were made before: finding one again takes longer than the attention of short rows.

A route is known by the signature of its call, which holds all that decides about it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .call.known_calls import Run, Signature
from .call.one_call import Call
from .dispatch import Route, plan_of
from .eager.one_node import alone, repeated
from .fused.blurred_keys import repeated_blur

_known: dict[Signature, Run] = {}
#: Lengths may change all the time.
_MOST = 1024
#: A causal mask of so many places is kept with what is known.
_SMALL_MASK = 2**12


def known_run(signature: Signature) -> Run | None:
    """How to compute a call like an earlier one; None if there was none."""
    return _known.get(signature)


def remember_route(signature: Signature, route: Route, run: Callable[[Route], tuple[Tensor, Tensor | None]]) -> None:
    """Note the route of a call, unless it depends on more than its signature. `run` computes a route."""
    call = route.call
    if call.seed is None or any(leaf.gate is not None or leaf.values or leaf.state for leaf in call.leaves):
        return
    if torch.is_inference_mode_enabled():
        return  # a mask that is kept could not be used in training later
    if len(_known) >= _MOST:
        _known.clear()
    shape = call.inputs.shape
    keeps_little = not call.visibility.causal or shape.rows * shape.columns <= _SMALL_MASK
    leaf = alone(call) if route.path == "eager" and keeps_little else None
    short: Run | None = repeated_blur(call, route.plan) if route.path == "sdpa" else None
    if leaf is not None:
        short = repeated(call, leaf)
    _known[signature] = short or _replaced(route, run)


def _replaced(route: Route, run: Callable[[Route], tuple[Tensor, Tensor | None]]) -> Run:
    """Computes the route with other tensors. Those of the first call are not kept."""
    nothing: Tensor = None  # type: ignore[assignment]
    call = route.call
    inputs = call.inputs._replace(q=nothing, k=nothing, v=nothing)
    described = [leaf._replace(seed=nothing) for leaf in call.leaves]
    visibility, dropout_p, path, kernel = call.visibility, call.dropout_p, route.path, route.kernel

    def again(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, Tensor | None]:
        leaves = [leaf._replace(seed=seed) for leaf in described]
        mine = Call(inputs._replace(q=q, k=k, v=v), leaves, visibility, None, seed, dropout_p, None, None)
        if path == "eager":
            return run(Route(path, mine))
        return run(Route(path, mine, plan_of(leaves), kernel))  # type: ignore[arg-type]

    return again
