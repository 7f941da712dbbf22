"""torch.compile in a process that trains one model after the other."""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

import torch
from torch import nn

#: How many variants of a model one process keeps: methods and shapes. Seeds and rates share one.
_VARIANTS = 64


def share_compiled_code() -> None:
    """Let the runs of a process share compiled code, as many kinds of them as a study has.

    torch compiles a function 8 times at most, and then runs it uncompiled, after a warning. That limit is meant for
    functions that change all the time. In a worker, run after run is another method on the same function.
    """
    config = torch._dynamo.config  # loads the compiler, so this is not done where nothing is compiled
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)


def compile_calls(model: nn.Module, shapes_vary: bool = False) -> None:
    """Compile what a call of the model computes. Runs of a process share the code. `model.forward` stays uncompiled.

    `shapes_vary`: one code serves inputs of all shapes. Otherwise each shape has its own, which is a little faster.

    Call it after `share_compiled_code`, and before an Accelerator wraps `forward`. `nn.Module.compile` would compile
    that wrapper, too. The wrapper has an object of its run, and torch drops the code that has seen it when the run
    ends. Here the wrapper stays outside.
    """
    call = _CompiledCall(model)
    bound: Any = model.forward
    eager = bound.__func__
    compiled = torch.compile(eager, dynamic=shapes_vary)

    @functools.wraps(eager)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (compiled if call.running else eager)(self, *args, **kwargs)

    model.forward = MethodType(forward, model)
    # The place for a compiled call: torch runs it instead of the module's own, and leaves it out of copies and pickles.
    model._compiled_call_impl = call


class _CompiledCall:
    """Calls a model as torch does, hooks included, with compiled code for its `forward`."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.running = model, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.running = True
        try:
            return self._model._call_impl(*args, **kwargs)
        finally:
            self.running = False
