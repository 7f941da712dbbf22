"""The one way in which our operators are registered with torch.

Why not a `torch.autograd.Function`: torch 2.11 traces the backward of one wrongly, while a compiler leaves an operator
as it is and asks it only for the shapes of its results. Why not `torch.library.custom_op`: it imports the compiler, and
with it Triton, even on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..untouched import call_directly
from .derivatives import checked, refused

_library = torch.library.Library("attentiondrop", "FRAGMENT")


class Operator(NamedTuple):
    """An operator `attentiondrop::<name>` whose gradient the operator `attentiondrop::<name>_backward` computes.

    The first takes (inputs, rest) and gives the results. The second takes (gradient of the first result, inputs that
    are `kept`, results, rest) and gives the gradients of all inputs.
    """

    name: str
    #: The names of the tensors that get a gradient.
    inputs: tuple[str, ...]
    #: The schema of the other arguments, tensors first.
    rest: str
    #: The names of the results, two or more.
    results: tuple[str, ...]
    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, ...]]
    #: The results without values, for compilers.
    fake_forward: Callable[..., tuple[Tensor, ...]]
    fake_backward: Callable[..., tuple[Tensor, ...]]
    #: How many of the inputs, counted from the first, the backward needs; None: all.
    kept: int | None = None


def define(name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `attentiondrop::<name>`. `fake` gives the results without values, for compilers."""
    _library.define(f"{name}{schema}")
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attentiondrop::{name}", fake, lib=_library)
    call_directly(name, implementation)


def differentiate(name: str, gradients: Callable[..., Any], keep: Callable[..., None] | None = None) -> None:
    """Give `attentiondrop::<name>` its gradient."""
    torch.library.register_autograd(f"attentiondrop::{name}", gradients, setup_context=keep, lib=_library)


def register(operator: Operator) -> None:
    """Register an operator, its backward and its gradient; derivatives that it does not have are refused."""
    name, backward = operator.name, f"{operator.name}_backward"
    saved = operator.inputs[: operator.kept]
    rest = operator.rest.split(", ")
    tensors = sum(argument.startswith("Tensor") for argument in rest)
    gradients_of = ", ".join(["Tensor"] * len(operator.inputs))
    define(
        name,
        f"({_listed(operator.inputs)}, {operator.rest}) -> ({_listed(operator.results)})",
        operator.forward,
        operator.fake_forward,
    )
    define(
        backward,
        f"(Tensor grad, {_listed(saved)}, {_listed(operator.results)}, {operator.rest}) -> ({gradients_of})",
        operator.backward,
        operator.fake_backward,
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        others = inputs[len(operator.inputs) :]
        ctx.save_for_backward(*inputs[: len(saved)], *output, *others[:tensors])
        ctx.numbers = others[tensors:]
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, grad: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [None] * len(operator.inputs)
        if grad is not None:
            found = getattr(torch.ops.attentiondrop, backward)(grad, *ctx.saved_tensors, *ctx.numbers)
        return (*found, *[None] * len(rest))

    differentiate(name, checked(name, gradients), keep)
    differentiate(backward, refused(name))


def like_inputs(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A fake backward that suits most operators: gradients of q, k and v without values, in their layouts."""
    q, k, v = arguments[:3]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"Tensor {name}" for name in names)
