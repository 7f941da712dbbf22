"""Run a training forward and find the attention that it computes unperturbed, which reading the code did not show."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...attaching import Unreached
from ..functional import perturbed_attention
from .discovery import FLEX, OWN_SOFTMAX, clean_name
from .softmax_trace import SoftmaxTrace

_BY_RUNNING = "which reading its code does not show (a training forward did)"
#: Functions that are attention for all arguments.
_ATTENTION: dict[Any, str] = {
    F.scaled_dot_product_attention: f"it calls scaled_dot_product_attention, {_BY_RUNNING}",
    F.multi_head_attention_forward: f"it calls F.multi_head_attention_forward, {_BY_RUNNING}",
}
_WRITTEN_OUT = "it computes its softmax itself, by exp and sum, without scaled_dot_product_attention"


class FindUnperturbed(TorchFunctionMode):
    """While active, record each module of `model` that attends unperturbed. Changes no result and no random number.

    Modules in evaluation mode are left out, since sites do not perturb there.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        #: In the order of the calls, one for each module.
        self.found: dict[str, Unreached] = {}
        self._names = {module: clean_name(name) for name, module in model.named_modules()}
        self._trace = SoftmaxTrace(model.buffers(), self._module)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not torch.compiler.is_compiling():
            self._look(func, args, kwargs, result)
        return result

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        reason = _ATTENTION.get(func) or _reason_of_operator(func)
        caller = sys._getframe(2).f_code
        if caller.co_name == "flex_attention" and caller.co_filename.endswith("flex_attention.py"):
            reason = FLEX
        if reason is not None:
            self._note(self._module(), reason)
            return
        place = self._trace.follow(getattr(func, "__name__", ""), args, kwargs, result)
        if place is not None:
            module, function = place
            self._note(module, OWN_SOFTMAX if "softmax" in function else _WRITTEN_OUT)

    def _note(self, module: nn.Module | None, reason: str) -> None:
        if module is not None:
            name = self._names[module]
            self.found.setdefault(name, Unreached(name, type(module).__name__, reason))

    def _module(self) -> nn.Module | None:
        """The module whose code makes the present call; None inside a site, or if the module is in evaluation mode."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is perturbed_attention.__code__:
                return None
            if code.co_argcount:
                owner = frame.f_locals.get(code.co_varnames[0])
                if isinstance(owner, nn.Module) and owner in self._names and not isinstance(owner, nn.Softmax):
                    return owner if owner.training else None
            frame = frame.f_back
        return None


def _reason_of_operator(func: Any) -> str | None:
    """The reason for an operator of `torch.ops` whose name says attention: kernels of other libraries, or of torch."""
    if not isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return None
    name = str(func)
    if "flex_attention" in name:
        return FLEX
    known = ("attention", "attn")
    return f"it calls the operator {name}" if any(part in name.rpartition(".")[2] for part in known) else None
