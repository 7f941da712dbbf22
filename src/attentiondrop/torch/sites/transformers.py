"""Attention modules of transformers, which look their attention function up by a name in their configuration.

In training a site shows its module a copy of the configuration that names ours. The model's own configuration, and with
it evaluation, mask creation and other models that share it, stays as it is.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from .base import ATTRIBUTE, KINDS, Kind, Site

#: Implementations whose masks say everything that the attention function must know.
REACHABLE = ("sdpa", "eager", "attentiondrop")


def members(base: type[nn.Module]) -> dict[str, Any]:
    """Only the view of the configuration changes; `attentiondrop.integrations.transformers` does the rest."""
    return {"config": property(_config, _set_config)}


def _config(self: nn.Module) -> Any:
    site: Site = getattr(self, ATTRIBUTE)
    return site.extra["training_config" if self.training else "config"]


def _set_config(self: nn.Module, config: Any) -> None:
    self.__dict__["config"] = config
    getattr(self, ATTRIBUTE).extra.update(_remember_config(config))


def _remember(module: nn.Module) -> dict[str, Any]:
    return _remember_config(module.__dict__["config"])


def _remember_config(config: Any) -> dict[str, Any]:
    """What a site remembers: the implementation it stands in for, the configuration, and the one for training.

    The module's `__dict__` keeps the configuration too, for the class it returns to; a property that reads it from
    there sends the compiler of torch 2.11 in circles.
    """
    from ...integrations.transformers import NAME

    view = copy.copy(config)
    # Not through the property: its setter would reach into configurations nested in the shared one.
    view.__dict__["_attn_implementation_internal"] = NAME
    return {"origin": config._attn_implementation, "config": config, "training_config": view}


def why_unreachable(module: nn.Module) -> str | None:
    """The reason why the module's attention function cannot be exchanged, or None if it can."""
    config = module.__dict__.get("config")
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        return "it has no configuration to look its attention function up in"
    if config._attn_implementation not in REACHABLE:
        return (
            f"attn_implementation={config._attn_implementation!r} passes no full mask: "
            "load the model with attn_implementation='sdpa'"
        )
    return None


KINDS["transformers"] = Kind(members, _remember)
