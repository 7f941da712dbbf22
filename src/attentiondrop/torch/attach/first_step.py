"""Look for attention that was missed in the first training step of a model, and be gone afterwards.

What waits for that step is in the place that torch has for a compiled call of a module (`nn.Module.compile`). A hook
would be copied, pickled and scripted along with the model, and would stay behind in an error; this is not: torch leaves
it out of copies and pickles, compiling the model takes its place, and it frees the place before the step runs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...attaching import Unreached
from .missed import FindUnperturbed

_PLACE = "_compiled_call_impl"
#: Where `torch.jit.script` reads what it must leave alone; it knows no type for what waits.
_UNSCRIPTED = "__jit_ignored_attributes__"

Report = Callable[[nn.Module, list[Unreached]], None]


class FirstStep:
    """Stands in for the call of a module until that is called in training mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.reports: list[Report] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; if it trains, look, and step aside for good."""
        model: Any = self._model()
        if torch.compiler.is_compiling():
            return model._call_impl(*args, **kwargs)
        # nn.DataParallel gives replicas the attributes of their original: the one that is called is to run.
        module = sys._getframe(1).f_locals.get("self", model)
        if not module.training or module is not model:
            return module._call_impl(*args, **kwargs)
        _free(module)
        # What a compiler left to the interpreter is not looked at either: it goes on with the calls inside. (Asked here
        # and not in a function of its own, which would be one of these calls.)
        if "torch._dynamo" in sys.modules and torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
            return module._call_impl(*args, **kwargs)
        if is_compiled(module):
            return module._call_impl(*args, **kwargs)
        finder = FindUnperturbed(module)
        with finder:
            output = module._call_impl(*args, **kwargs)
        for report in self.reports:
            report(module, list(finder.found.values()))
        return output


def await_first_step(model: nn.Module, report: Report) -> bool:
    """Report what the first training step of `model` attends to unperturbed; False if that is compiled, and cannot."""
    if is_compiled(model):
        return False
    waiting = model.__dict__.get(_PLACE)
    if waiting is None:
        waiting = model.__dict__[_PLACE] = FirstStep(model)
        model.__dict__[_UNSCRIPTED] = [*getattr(model, _UNSCRIPTED, ()), _PLACE, _UNSCRIPTED]
    waiting.reports.append(report)
    return True


def forget_first_step(model: nn.Module, report: Report | None = None) -> None:
    """Do not look after all: for one report, or for all of them."""
    waiting = model.__dict__.get(_PLACE)
    if isinstance(waiting, FirstStep):
        waiting.reports = [] if report is None else [known for known in waiting.reports if known != report]
        if not waiting.reports:
            _free(model)


def _free(model: nn.Module) -> None:
    """Leave nothing behind."""
    del model.__dict__[_PLACE]
    model.__dict__.pop(_UNSCRIPTED, None)


def is_compiled(model: nn.Module) -> bool:
    """Whether it or parts of it are compiled: they would be compiled anew, and again in the second step."""
    return any(
        "_orig_mod" in module._modules or not isinstance(module.__dict__.get(_PLACE), FirstStep | None)
        for module in model.modules()
    )
