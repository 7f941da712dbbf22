"""Find the attention in a model by what its classes do, not by a list of their names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import nn

from . import transformers
from .base import site_of
from .classes import own_class
from .sdpa import SWITCH

#: Classes of timm that attend over channels: their "keys" are features, so dropping or blurring them means nothing.
_CHANNEL_ATTENTION = {"XCA", "ChannelAttention", "ChannelAttentionV2"}

#: How deep to follow methods and helper functions from a forward, within the package of the class.
_DEPTH = 2


class Found(NamedTuple):
    """An attention module: reachable by `kind`, or not, for `reason`."""

    name: str
    module: nn.Module
    kind: str | None
    reason: str | None


def find_attention(model: nn.Module) -> list[Found]:
    """Every attention module of `model`, in the order of `named_modules`."""
    found = [entry for name, module in model.named_modules() if (entry := _classify(clean_name(name), module))]
    return [leaf for entry in found if (leaf := _without_nested(entry, found))]


def clean_name(name: str) -> str:
    """The name without what `torch.compile`, FSDP and activation checkpointing put into it."""
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        name = name.replace(f"{wrapper}.", "").removesuffix(f".{wrapper}")
    return name


def _classify(name: str, module: nn.Module) -> Found | None:
    if site_of(module) is not None:
        return Found(name, module, None, "it is attached already")
    cls = own_class(type(module))
    used = names_used(cls)
    if isinstance(module, nn.MultiheadAttention) and cls.forward is nn.MultiheadAttention.forward:
        return _reachable(name, module, "multihead")
    if "ALL_ATTENTION_FUNCTIONS" in used:
        reason = transformers.why_unreachable(module)
        return Found(name, module, None, reason) if reason else _reachable(name, module, "transformers")
    if cls.__name__ in _CHANNEL_ATTENTION:
        return Found(name, module, None, "it attends over channels, not over tokens")
    if "scaled_dot_product_attention" in used:
        return _reachable(name, module, "sdpa with a switch" if SWITCH in module.__dict__ else "sdpa")
    softmax = "softmax" in used or any(isinstance(child, nn.Softmax) for child in module.children())
    if softmax and "att" in f"{cls.__name__} {name.rpartition('.')[2]}".lower():
        return Found(name, module, None, "it computes its softmax itself, without scaled_dot_product_attention")
    return None


def _reachable(name: str, module: nn.Module, kind: str) -> Found:
    if "forward" in module.__dict__:
        return Found(name, module, None, "its forward was replaced on the instance (detach that hook first)")
    return Found(name, module, kind, None)


def _without_nested(entry: Found, found: list[Found]) -> Found | None:
    """A site around other sites would perturb their attention twice."""
    prefix = f"{entry.name}." if entry.name else ""
    if entry.kind is None or not any(o.kind and o is not entry and o.name.startswith(prefix) for o in found):
        return entry
    if entry.kind == "transformers":
        return None  # a model that only passes the look-up on
    return entry._replace(kind=None, reason="it contains other attention modules, which are sites themselves")


_names: dict[type[nn.Module], set[str]] = {}


def names_used(cls: type[nn.Module]) -> set[str]:
    """The names that `forward` mentions, and the methods and helper functions of the same package that it leads to."""
    if cls not in _names:
        function = _function(cls.forward)
        _names[cls] = set() if function is None else _names_in(function, cls, set(), _DEPTH)
    return _names[cls]


def _function(member: Any) -> FunctionType | None:
    """The plain function behind a method, static method, class method or decorated function."""
    member = getattr(member, "__func__", member)
    member = inspect.unwrap(member) if callable(member) and hasattr(member, "__wrapped__") else member
    return member if isinstance(member, FunctionType) else None


def _names_in(function: FunctionType, cls: type[nn.Module], seen: set[CodeType], depth: int) -> set[str]:
    if function.__code__ in seen:
        return set()
    names: set[str] = set()
    for code in _codes(function.__code__):
        seen.add(code)
        names |= set(code.co_names)
    if depth > 0:
        package = cls.__module__.partition(".")[0]
        for name in list(names):
            # A name in the code is a global or an attribute; `self.attend(...)` shows as "attend".
            for helper in (_function(function.__globals__.get(name)), _function(getattr(cls, name, None))):
                if helper is not None and helper.__module__.partition(".")[0] == package:
                    names |= _names_in(helper, cls, seen, depth - 1)
    return names


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
