"""Sites that call `scaled_dot_product_attention` or `F.multi_head_attention_forward`: timm, most hand-written modules.

If the module's forward makes all these calls itself (`own_calls`), a copy of it runs, in which the name of the function
means ours (`redirected`). Otherwise, and for compilers, a function mode around the forward replaces the calls. It sees
every operation, which takes longer than the attention of a small model.

If activation checkpointing wraps the *whole module*, the backward runs that forward again, with the mode. If the module
checkpoints a *part of itself*, the backward calls only that part, outside the forward. So the methods that the forward
calls enter the mode as well. A checkpointed part that is no method is refused, because its gradient would be wrong.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ...errors import AttachError
from ..call.causal_bias import without_causal_bias
from ..call.inputs import Options
from ..fused.repeated_short import repeat
from .attend import attend
from .head_places import has_heads_first, heads_last, remember_heads
from .multihead import perturbed_multi_head
from .own_calls import SDPA, makes_own_calls
from .read_code import methods_of, plain_function
from .redirected import redirected
from .sites import ATTRIBUTE, WAYS, Site, Way

#: The attribute with which a timm module chooses between SDPA and an explicit softmax.
SWITCH = "fused_attn"


class PerturbSdpa(TorchFunctionMode):
    """While active, `scaled_dot_product_attention` calls perturbed attention with the spec of the site."""

    def __init__(self, site: Site, cls: str) -> None:
        super().__init__()
        self.site = site
        self.cls = cls
        self.calls = 0
        #: Whether a backward may follow.
        self.differentiated = torch.is_grad_enabled()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        exchanged = _EXCHANGED.get(func)
        if exchanged is not None:
            self.calls += 1
            if self.differentiated and not torch.compiler.is_compiling():
                self._refuse_recomputation()
            return exchanged(self.site, *args, **(kwargs or {}))
        if func is Tensor.unflatten:
            func = torch.unflatten  # does the same; the compiler of torch 2.11 cannot trace the method here
        return func(*args, **(kwargs or {}))

    def _refuse_recomputation(self) -> None:
        """Refuse a call that the backward will repeat without going through the module's methods."""
        # The forward of a torch.autograd.Function runs without gradients; its backward may recompute the attention.
        functions = set() if torch.is_grad_enabled() else _forwards(torch.autograd.Function)
        frame = sys._getframe(2)
        while frame is not None and frame.f_code not in _ENTRANCES:
            if frame.f_code.co_filename == _CHECKPOINT or frame.f_code in functions:
                raise AttachError(
                    f"{self.site.name or 'the model'} ({self.cls}) calls its attention inside of a checkpointed "
                    "function (or another torch.autograd.Function) that is no method of the module: the backward would "
                    "compute it again unperturbed; give checkpoint a method, or checkpoint the whole module"
                )
            frame = frame.f_back  # type: ignore[assignment]


def _forwards(function: type) -> set[CodeType]:
    """The code of the forward of every subclass of torch.autograd.Function."""
    below: list[type] = type.__subclasses__(function)
    codes = {code for other in below for code in _forwards(other)}
    forward = plain_function(getattr(function, "forward", None))
    return codes if forward is None else {*codes, forward.__code__}


#: The file in which activation checkpointing calls the checkpointed function.
_CHECKPOINT = inspect.getsourcefile(torch.utils.checkpoint)

#: The code of the functions below that enter the mode.
_ENTRANCES: set[CodeType] = set()


def _perturbed(
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # (Here already: what follows may split masks.)
    options = without_causal_bias(Options(attn_mask, dropout_p, is_causal, scale, enable_gqa), query, key)
    if has_heads_first(site, query):
        mask = None if options.attn_mask is None else heads_last(options.attn_mask)
        options = options._replace(attn_mask=mask)
        query, key, value = heads_last(query), heads_last(key), heads_last(value)
        attended = attend(site, query, key, value, site.drop, options, site.backend, site.monitor)
        return heads_last(attended.output).contiguous()  # as SDPA gives it
    return attend(site, query, key, value, site.drop, options, site.backend, site.monitor).output


#: Function -> its perturbed replacement.
_EXCHANGED: dict[Any, Callable[..., Any]] = {
    SDPA: _perturbed,
    F.multi_head_attention_forward: perturbed_multi_head,
}


class _Running(threading.local):
    """The site whose forward runs in this thread as a redirected copy, and how many calls it has made."""

    site: Site | None = None
    calls = 0


_running = _Running()


def _redirected_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    running = _running
    site = running.site
    if site is None:
        raise AttachError("a module called its attention after its forward had returned: that call cannot be perturbed")
    running.calls += 1
    # The shortest way, for calls that most models make all the time. (No compiler gets here.)
    if (
        attn_mask is None
        and site.driven is None
        and site.monitor is None
        and not site.stacks
        and site.rank is None
        and (site.reminders is None or not site.reminders.left)
    ):
        known = repeat(query, key, value, site.spec, dropout_p, is_causal, scale, enable_gqa, site.backend)
        if known is not None:
            return known
    return _perturbed(site, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _run_redirected(copy: FunctionType, site: Site, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, int]:
    """The output of the copy of a forward, and how often it has called its attention."""
    running = _running
    before = running.site, running.calls
    running.site, running.calls = site, 0
    try:
        return copy(module, *args, **kwargs), running.calls
    finally:
        running.site, running.calls = before


def members(base: type[nn.Module]) -> dict[str, Any]:
    """A forward, and the methods it calls, that reach the attention in training mode only."""
    original = base.forward
    copy = redirected(original, _redirected_sdpa) if isinstance(original, FunctionType) else None

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return base.forward(self, *args, **kwargs)
        site: Site = getattr(self, ATTRIBUTE)
        # (Somebody may have put another function in the place of the forward, or of SDPA.)
        if (
            not torch.compiler.is_compiling()
            and copy is not None
            and base.forward is original
            and F.scaled_dot_product_attention is SDPA
            and _makes_own_calls(site, self, base)
        ):
            output, calls = _run_redirected(copy, site, self, args, kwargs)
        else:
            mode = PerturbSdpa(site, base.__name__)
            with mode:
                output = base.forward(self, *args, **kwargs)
            calls = mode.calls
        if calls == 0:
            raise AttachError(
                f"{site.name or 'the model'} ({base.__name__}) has a branch without scaled_dot_product_attention and "
                f"took it, so nothing was perturbed: {_how_to_switch(self)}, or leave it out of attach"
            )
        return output

    _ENTRANCES.add(forward.__code__)
    methods = sorted(name for name in methods_of(base) - {"forward"} if not name.startswith("__"))
    return {"forward": forward, **{name: _entering(getattr(base, name), base) for name in methods}}


def _how_to_switch(module: nn.Module) -> str:
    """What makes a module call SDPA instead of computing the attention itself."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if chosen is None:
        return (
            "switch its fused attention on (compiled, it must not checkpoint its attention itself: checkpoint the "
            "whole module)"
        )
    if chosen == "sdpa":  # some models of transformers leave it for the weights
        return "do not ask for attention weights (output_attentions=True)"
    # (Models like this one cannot be switched later.)
    return f"load the model with attn_implementation='sdpa' instead of {chosen!r}"


def _makes_own_calls(site: Site, module: nn.Module, base: type[nn.Module]) -> bool:
    if site.own_calls is None:
        site.own_calls = makes_own_calls(module, base)
    return site.own_calls


def _entering(method: FunctionType, base: type[nn.Module]) -> Any:
    """The method, but it enters the mode if it is called outside the forward, which happens when it is recomputed."""

    def entering(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self.training:
            return method(self, *args, **kwargs)
        site: Site = getattr(self, ATTRIBUTE)
        if _running.site is site:
            return method(self, *args, **kwargs)  # the forward runs, and makes its calls itself
        if any(isinstance(mode, PerturbSdpa) and mode.site is site for mode in _get_current_function_mode_stack()):
            return method(self, *args, **kwargs)
        with PerturbSdpa(site, base.__name__):
            return method(self, *args, **kwargs)

    _ENTRANCES.add(entering.__code__)

    return functools.wraps(method)(entering)


def members_with_switch(base: type[nn.Module]) -> dict[str, Any]:
    """timm's modules, which have a switch between SDPA and an explicit softmax."""
    return {**members(base), SWITCH: property(_switch, _set_switch)}


def _switch(self: nn.Module) -> bool:
    """True (SDPA) in training, otherwise the value that the model has set."""
    site: Site = getattr(self, ATTRIBUTE)
    return self.training or site.extra[SWITCH]


def _set_switch(self: nn.Module, value: bool) -> None:
    self.__dict__[SWITCH] = value  # for the class that the module returns to
    getattr(self, ATTRIBUTE).extra[SWITCH] = value


def _remember_switch(module: nn.Module) -> dict[str, Any]:
    return {SWITCH: module.__dict__[SWITCH], **remember_heads(module)}


WAYS["sdpa"] = Way(members, remember_heads)
WAYS["sdpa with a switch"] = Way(members_with_switch, _remember_switch)
