"""Sites in transformers models: their attention modules look up the attention function by a name in the configuration.

In training, a site gives its module a view of the configuration. The view names our function and shares all other
values with the configuration. The configuration itself does not change, so evaluation, mask creation and other models
that use it stay as they are. If a user changes the configuration later, also its attention implementation, the next
call uses the change.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .sites import ATTRIBUTE, WAYS, Site, Way
from .transformers_names import NAME, REACHABLE, no_mask


def members(base: type[nn.Module]) -> dict[str, Any]:
    """A property `config` that gives the view in training; `transformers_attention` does the rest."""
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

    The module's `__dict__` keeps the configuration too, for the time after `remove`.
    """
    return {"config": config, "training_config": training_view(config)}


_views: dict[type, type] = {}


def training_view(config: Any) -> Any:
    """A view of `config` with our attention implementation; it shares all other values, also when they change later."""
    cls = type(config)
    if cls not in _views:
        _views[cls] = _view_class(cls)
    view: Any = object.__new__(_views[cls])
    # Both use one dictionary: a value that is set on one is set on the other.
    object.__setattr__(view, "__dict__", config.__dict__)
    object.__setattr__(view, "_attentiondrop_config", config)
    return view


def _view_class(cls: type) -> type:
    # Imported here and not above, since it loads transformers. It registers our function there.
    from . import transformers_attention as _registered  # noqa: F401

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        # In copies and pickles, the view must share values with the copied configuration.
        return training_view, (self._attentiondrop_config,)

    own: Any = cls
    members = {
        "__slots__": ("_attentiondrop_config",),  # in the shared dictionary, the configuration would contain it
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


WAYS["transformers"] = Way(members, _remember)
