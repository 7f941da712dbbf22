"""Support for `torch.jit.script`: it compiles the source of each forward, so it must find the model's own source.

A script runs the model as in evaluation, since TorchScript cannot express the perturbations.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from torch import nn

from ...errors import AttachError


def passing_for(own: Any, perturbed: Any) -> Any:
    """A function that runs `perturbed` but has the source, signature and globals of `own`."""
    if not isinstance(own, FunctionType):
        return perturbed

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return perturbed(self, *args, **kwargs)

    # It uses no globals itself. The script compiler looks up the globals of the source here.
    shown = FunctionType(forward.__code__, own.__globals__, own.__name__, None, forward.__closure__)
    return functools.update_wrapper(shown, own, updated=())


def check_scriptable(self: nn.Module) -> nn.Module:
    """Return the module, or refuse one in training mode: its script would not perturb.

    `torch.jit.script` calls this first, as `__prepare_scriptable__`.
    """
    if self.training:
        raise AttachError(
            f"torch.jit.script: {type(self).__name__} is attached and in training mode, and a script cannot perturb "
            "attention: call model.eval() first for a script of the evaluation, or remove the attachment"
        )
    return self
