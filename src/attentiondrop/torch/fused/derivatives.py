"""Derivatives that our operators do not have. They raise an error, where torch alone would silently return no result.

Our operators have a backward. They have no forward-mode derivative, and no derivative of the backward; torch would
leave out the tangent or the gradient without a word. Eager attention has both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import BackendError


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation runs, and reaches one of the tensors."""
    # The level is a global number, below 0 as long as nobody uses forward mode, so that the check is cheap.
    if forward_ad._current_level < 0:
        return False
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def is_in_functional_gradient() -> bool:
    """Whether `torch.func` differentiates this code, by `grad`, `jvp` or what builds on them."""
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
