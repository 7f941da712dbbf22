"""Derivatives that our operators do not have: an error says so, where torch would give zeros, or nothing at all.

Our operators have a backward. They have no forward-mode derivative (torch then leaves the tangent out, silently) and no
derivative of the backward (torch then leaves the gradient out, silently). Eager attention has both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import BackendError


def why_not_differentiable(*tensors: Tensor | None) -> str | None:
    """The reason why derivatives of a fused path would be wrong or missing here, or None if there is none.

    Second derivatives by `create_graph=True` are not known yet: the backward refuses them when they are asked for.
    """
    if has_tangent(*tensors):
        return "fused operators have no forward-mode derivative (torch.func.jvp)"
    if not torch.compiler.is_compiling() and _under_functional_gradient():
        return "fused operators do not know the gradients of torch.func (torch.autograd computes them)"
    return None


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation runs, and reaches one of the tensors."""
    # The level is one number of the process: nothing to pay where nobody uses it.
    if forward_ad._current_level < 0:
        return False
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _under_functional_gradient() -> bool:
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is None:
        return False
    kinds = (functorch.TransformType.Grad, functorch.TransformType.Jvp)
    return any(level.key() in kinds for level in functorch.get_interpreter_stack() or ())


def checked(name: str, gradients: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the operator `name`, which refuses a tangent: its backward has no forward-mode derivative."""

    def found(ctx: Any, *grads: Tensor | None) -> Any:
        if has_tangent(*grads):
            raise BackendError(_refusal(name, "no forward-mode derivative of its gradient"))
        return gradients(ctx, *grads)

    return found


def refused(name: str) -> Callable[..., Any]:
    """The gradient of the backward of the operator `name`, which has none."""

    def refuse(ctx: Any, *grads: Tensor | None) -> Any:
        raise BackendError(_refusal(name, "no second derivative"))

    return refuse


def _refusal(name: str, lack: str) -> str:
    return f'the operator attentiondrop::{name} has {lack}: use backend="eager", which computes it'
