"""Attention modules of transformers, which look their attention function up by a name in their configuration.

In training a site shows its module a view of the configuration that names our function and shares everything else with
it. The model's own configuration, and with it evaluation, mask creation and other models that share it, stays as it is.
What somebody sets on that configuration later, its implementation included, is seen in the next call.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .sites import ATTRIBUTE, KINDS, Kind, Site
from .transformers_names import NAME, REACHABLE, no_mask


def members(base: type[nn.Module]) -> dict[str, Any]:
    """Only the view of the configuration changes; `transformers_attention` does the rest."""
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
    """What a site remembers: the configuration, and its view for training. Neither is a copy.

    The module's `__dict__` keeps the configuration too, for the class it returns to; a property that reads it from
    there sends the compiler of torch 2.11 in circles.
    """
    return {"config": config, "training_config": training_view(config)}


_views: dict[type, type] = {}


def training_view(config: Any) -> Any:
    """`config` under another attention implementation: all other values are the same ones, now and later."""
    cls = type(config)
    if cls not in _views:
        _views[cls] = _view_class(cls)
    view: Any = object.__new__(_views[cls])
    # One dictionary for both: a value that is set on either is set on both.
    object.__setattr__(view, "__dict__", config.__dict__)
    object.__setattr__(view, "_attentiondrop_config", config)
    return view


def _view_class(cls: type) -> type:
    # Only now: it loads transformers, and registers our function there.
    from . import transformers_attention as _registered  # noqa: F401

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        # Copies and pickles must share values with the copy of the configuration again.
        return training_view, (self._attentiondrop_config,)

    own: Any = cls
    members = {
        "__slots__": ("_attentiondrop_config",),  # in the dictionary it would show up in the configuration
        "__reduce_ex__": reduce,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_attn_implementation": property(lambda self: NAME, own._attn_implementation.fset),
    }
    return type(cls.__name__, (cls,), members)


def why_unreachable(module: nn.Module) -> str | None:
    """The reason why the module's attention function cannot be exchanged, or None if it can."""
    config = module.__dict__.get("config")
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        return "it has no configuration to look its attention function up in"
    if config._attn_implementation not in REACHABLE:
        return f"{no_mask(config._attn_implementation)}: load the model with attn_implementation='sdpa'"
    return None


KINDS["transformers"] = Kind(members, _remember)
