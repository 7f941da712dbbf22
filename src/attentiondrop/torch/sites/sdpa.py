"""Modules that call `scaled_dot_product_attention` themselves: timm, and most hand-written attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...errors import AttachError
from ..functional import Options
from .base import ATTRIBUTE, KINDS, Kind, Site
from .stacked import attend

#: The attribute with which a timm module chooses between SDPA and an explicit softmax.
SWITCH = "fused_attn"


class PerturbSdpa(TorchFunctionMode):
    """While active, `scaled_dot_product_attention` is `attention` with the spec of the site."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.calls += 1
            return _perturbed(self.site, *args, **(kwargs or {}))
        if func is Tensor.unflatten:
            func = torch.unflatten  # the same; the compiler of torch 2.11 cannot trace the method from here
        return func(*args, **(kwargs or {}))


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
    options = Options(attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return attend(site, query, key, value, site.drop, options, site.backend, site.monitor).output


def members(base: type[nn.Module]) -> dict[str, Any]:
    """Enter the mode around the module's own forward only, and only in training."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return base.forward(self, *args, **kwargs)
        site: Site = getattr(self, ATTRIBUTE)
        mode = PerturbSdpa(site)
        with mode:
            output = base.forward(self, *args, **kwargs)
        if mode.calls == 0:
            raise AttachError(
                f"{site.name or 'the model'} ({base.__name__}) has a branch without scaled_dot_product_attention and "
                "took it, so nothing was perturbed: switch its fused attention on, or leave it out of attach"
            )
        return output

    return {"forward": forward}


def members_with_switch(base: type[nn.Module]) -> dict[str, Any]:
    """timm's modules, which have a switch between SDPA and an explicit softmax."""
    return {**members(base), SWITCH: property(_switch, _set_switch)}


def _switch(self: nn.Module) -> bool:
    """In training always SDPA, otherwise what the model says."""
    site: Site = getattr(self, ATTRIBUTE)
    return self.training or site.extra[SWITCH]


def _set_switch(self: nn.Module, value: bool) -> None:
    self.__dict__[SWITCH] = value  # for the class that the module returns to
    getattr(self, ATTRIBUTE).extra[SWITCH] = value


def _remember_switch(module: nn.Module) -> dict[str, Any]:
    return {SWITCH: module.__dict__[SWITCH]}


KINDS["sdpa"] = Kind(members)
KINDS["sdpa with a switch"] = Kind(members_with_switch, _remember_switch)
