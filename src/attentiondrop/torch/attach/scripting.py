"""`torch.jit.script` of an attached model: it compiles the source of each forward, and must find the model's own.

A script is the model in evaluation. Perturbations cannot be written in TorchScript.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from torch import nn

from ...errors import AttachError


def passing_for(own: Any, perturbed: Any) -> Any:
    """`perturbed`, but whoever asks for source, signature or globals of it is told those of `own`."""
    if not isinstance(own, FunctionType):
        return perturbed

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return perturbed(self, *args, **kwargs)

    # It uses no global names itself. The script compiler looks those of the source up here.
    shown = FunctionType(forward.__code__, own.__globals__, own.__name__, None, forward.__closure__)
    return functools.update_wrapper(shown, own, updated=())


def check_scriptable(self: nn.Module) -> nn.Module:
    """What `torch.jit.script` asks each module for first: itself. A script made for training would not perturb."""
    if self.training:
        raise AttachError(
            f"torch.jit.script: {type(self).__name__} is attached and in training mode, and a script cannot perturb "
            "attention: call model.eval() first for a script of the evaluation, or remove the attachment"
        )
    return self
