"""The routes of calls on a CPU that were made before: finding one again takes longer than the attention of short rows.

A route is known by the signature of its call, which holds all that decides about it.
"""

from __future__ import annotations

from torch import Tensor

from .call.known_calls import Signature
from .call.one_call import Call
from .dispatch import Route, plan_of

#: What is the same for all calls with one signature: the route of the first one, without its tensors.
_known: dict[Signature, Route] = {}
#: Lengths may change all the time.
_MOST = 1024


def remember_route(signature: Signature, route: Route, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Note the route of a call, unless it depends on more than its signature."""
    call, inputs = route.call, route.call.inputs
    if not query.is_cpu or inputs.q is not query or inputs.k is not key or inputs.v is not value:
        return
    if call.seed is None or any(leaf.gate is not None or leaf.values or leaf.state for leaf in call.leaves):
        return
    if len(_known) >= _MOST:
        _known.clear()
    nothing: Tensor = None  # type: ignore[assignment]
    inputs = inputs._replace(q=nothing, k=nothing, v=nothing)
    leaves = [leaf._replace(seed=nothing) for leaf in call.leaves]
    _known[signature] = Route(route.path, call._replace(inputs=inputs, leaves=leaves, seed=None), kernel=route.kernel)


def known_route(signature: Signature, query: Tensor, key: Tensor, value: Tensor) -> Route | None:
    """The route of a call like an earlier one, which lacks only its seed; None if there was none."""
    found = _known.get(signature)
    if found is None:
        return None
    return found._replace(call=found.call._replace(inputs=found.call.inputs._replace(q=query, k=key, v=value)))


def with_seed(route: Route, seed: Tensor) -> Route:
    """A known route with the seed of the present call."""
    call = route.call
    leaves = [leaf._replace(seed=seed) for leaf in call.leaves]
    call = Call(call.inputs, leaves, call.visibility, None, seed, call.dropout_p, None, None)
    plan = route.plan if route.path == "eager" else plan_of(leaves)
    return Route(route.path, call, plan, route.kernel)  # type: ignore[arg-type]
