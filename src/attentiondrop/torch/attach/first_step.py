"""In the first training step of a model, look for attention that `attach` missed; then disappear from the model.

Until that step, a `FirstStep` stands in the attribute that torch has for the compiled call of a module
(`nn.Module.compile`). A hook would be copied, pickled and scripted with the model, and would stay after an error. This
attribute does not have these problems: torch leaves it out of copies and pickles, compiling the model overwrites it,
and `FirstStep` deletes it before the step runs. It puts itself back only if an error ends the step early, since then
nobody has seen the rest of the model.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...attaching import Unreached
from .find_by_running import FindUnperturbed

_PLACE = "_compiled_call_impl"
#: The attribute that lists what `torch.jit.script` must ignore; it cannot script a `FirstStep`.
_UNSCRIPTED = "__jit_ignored_attributes__"

#: How many steps are watched until one ends without an error. (Some models end every call by an error on purpose.)
_TRIES = 3

Report = Callable[[nn.Module, list[Unreached]], None]


class FirstStep:
    """Replaces the call of a module until the module is first called in training mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.reports: list[Report] = []
        self._tries = _TRIES

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module. In training mode, remove this object first and look for missed attention."""
        model: Any = self._model()
        if torch.compiler.is_compiling():
            return model._call_impl(*args, **kwargs)
        # nn.DataParallel gives its replicas this attribute, too. Run the module that was called.
        module = sys._getframe(1).f_locals.get("self", model)
        if not module.training or module is not model:
            return module._call_impl(*args, **kwargs)
        _free(module)
        # Do not look while dynamo is active: it would compile the calls inside. (This test is not in a function of its
        # own, since dynamo would compile that, too.)
        if "torch._dynamo" in sys.modules and torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
            return module._call_impl(*args, **kwargs)
        if is_compiled(module):
            return module._call_impl(*args, **kwargs)
        finder = FindUnperturbed(module)
        self._tries -= 1
        try:
            with finder:
                output = module._call_impl(*args, **kwargs)
        except BaseException:
            if self._tries > 0 and _PLACE not in module.__dict__:
                _place(module, self)
            raise
        for report in self.reports:
            report(module, list(finder.found.values()))
        return output


def await_first_step(model: nn.Module, report: Report) -> bool:
    """Call `report` with the attention that the first training step computes unperturbed.

    Returns False, and does nothing, if the model is compiled.
    """
    if is_compiled(model):
        return False
    waiting = model.__dict__.get(_PLACE)
    if waiting is None:
        waiting = FirstStep(model)
        _place(model, waiting)
    waiting.reports.append(report)
    return True


def forget_first_step(model: nn.Module, report: Report | None = None) -> None:
    """Take back `await_first_step`, for one report or for all of them."""
    waiting = model.__dict__.get(_PLACE)
    if isinstance(waiting, FirstStep):
        waiting.reports = [] if report is None else [known for known in waiting.reports if known != report]
        if not waiting.reports:
            _free(model)


def _place(model: nn.Module, waiting: FirstStep) -> None:
    """Set both attributes."""
    model.__dict__[_PLACE] = waiting
    model.__dict__[_UNSCRIPTED] = [*getattr(model, _UNSCRIPTED, ()), _PLACE, _UNSCRIPTED]


def _free(model: nn.Module) -> None:
    """Remove both attributes."""
    del model.__dict__[_PLACE]
    model.__dict__.pop(_UNSCRIPTED, None)


def is_compiled(model: nn.Module) -> bool:
    """Whether it or a part of it is compiled. Looking would compile it again, and once more in the second step."""
    return any(
        "_orig_mod" in module._modules or not isinstance(module.__dict__.get(_PLACE), FirstStep | None)
        for module in model.modules()
    )
