"""Does the forward of a module make all calls of its attention itself? Reading its code tells, or leaves it open.

Whatever this file does not know makes the answer no, which only costs time: `sdpa` then watches all operations.
"""

from __future__ import annotations

import builtins
import dis
import math
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .read_code import Load, Owner, closed_over, codes_in, is_foreign, loads_in, plain_function, read_methods

SDPA = F.scaled_dot_product_attention
_ATTENTION = (SDPA, F.multi_head_attention_forward)

#: What a global may be, by `id` -> the attributes that lead from it to SDPA.
PATHS = {id(SDPA): (), id(F): (SDPA.__name__,), id(torch): ("nn", "functional", SDPA.__name__)}

#: With these, a function can reach anything.
_UNREADABLE = {"super", "getattr", "eval", "exec", "globals", "locals", "vars", "__import__", "__globals__"}
_UNREADABLE_OPERATIONS = {"IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size, Tensor)
#: Modules of torch that call attention.
_ATTENTIVE = (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def makes_own_calls(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether the forward of `cls`, a class of the module, calls SDPA itself, and nothing that it leads to does."""
    forward = cls.forward
    if not isinstance(forward, FunctionType) or plain_function(forward) is not forward or is_foreign(forward):
        return False
    if not any(_is_sdpa(load, forward) for code in codes_in(forward.__code__) for load in loads_in(code).loads):
        return False
    others = [submodule for submodule in module.modules() if submodule is not module]
    return not any(_may_attend(other) for other in others) and _Reader(forward, set()).is_harmless(
        forward, Owner(cls, module)
    )


def _may_attend(module: nn.Module) -> bool:
    """Whether a submodule may call attention."""
    if type(module).__module__.startswith("torch.nn.modules."):
        return isinstance(module, _ATTENTIVE)
    found = read_methods(module)
    return any(found.loads(function) for function in _ATTENTION)


def _is_sdpa(load: Load, function: FunctionType) -> bool:
    """Whether this loads SDPA by a name that `redirected` exchanges."""
    if load.kind != "global":
        return False
    path = PATHS.get(id(function.__globals__.get(load.root)))
    return path is not None and load.path == path


class _Reader(NamedTuple):
    """Reads functions. Only `forward` may load SDPA."""

    forward: Any
    seen: set[FunctionType]

    def is_harmless(self, function: FunctionType, owner: Owner | None) -> bool:
        """Whether the function, without the calls that `forward` makes itself, can reach no attention."""
        if function in self.seen:
            return True
        self.seen.add(function)
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        first = parameters[0] if parameters and owner is not None else None
        return all(
            _is_readable(code) and all(self._is_known(load, function, owner, first) for load in loads_in(code).loads)
            for code in codes_in(function.__code__)
        )

    def _is_known(self, load: Load, function: FunctionType, owner: Owner | None, first: str | None) -> bool:
        kind, root, path = load
        if kind == "local" or root == first:
            # (Another variable holds what the function got, or made from what it loads elsewhere.)
            return root != first or owner is None or not path or self._is_known_member(owner, path[0])
        if function is self.forward and _is_sdpa(load, function):
            return True
        if kind == "global" and root not in function.__globals__:
            return hasattr(builtins, root)
        value = function.__globals__[root] if kind == "global" else closed_over(function, root)
        return self._is_known_value(value, path)

    def _is_known_member(self, owner: Owner, name: str) -> bool:
        """Whether an attribute of `self` is a submodule (which is read on its own), a constant, or harmless code."""
        module: nn.Module = owner.instance
        if any(name in held for held in (module._modules, module._parameters, module._buffers)):
            return True
        value = owner.lookup(name)
        member = value.fget if isinstance(value, property) else value
        if isinstance(member, FunctionType) and not owner.holds(name):
            return is_foreign(member) or (plain_function(member) is member and self.is_harmless(member, owner))
        return _is_constant(value)

    def _is_known_value(self, value: Any, path: tuple[str, ...]) -> bool:
        if value is math:
            return True
        if value is torch or value is F:
            return _is_plain_torch(value, path)
        if isinstance(value, FunctionType) and not path:
            if is_foreign(value):
                return value.__module__ in ("torch.functional", F.__name__) and value not in _ATTENTION
            return plain_function(value) is value and self.is_harmless(value, None)
        return _is_constant(value) or (isinstance(value, type) and value.__module__ == "builtins")


def _is_readable(code: CodeType) -> bool:
    operations = {instruction.opname for instruction in dis.get_instructions(code)}
    return _UNREADABLE.isdisjoint(code.co_names) and _UNREADABLE_OPERATIONS.isdisjoint(operations)


def _is_plain_torch(value: ModuleType, path: tuple[str, ...]) -> bool:
    """Whether this attribute of `torch` or `torch.nn.functional` computes something, or asks how the code runs."""
    if value is torch and path[:2] == ("nn", "functional"):
        value, path = F, path[2:]
    if path and path[-1].startswith("is_"):
        return True
    found = getattr(value, path[0], None) if path else None
    if found is None or found in _ATTENTION:
        return False
    return isinstance(found, (BuiltinFunctionType, FunctionType, *_CONSTANTS)) if value is F else _is_operation(found)


def _is_operation(found: Any) -> bool:
    if isinstance(found, FunctionType):
        return found.__module__ == "torch.functional"
    return found is Tensor or isinstance(found, (BuiltinFunctionType, *_CONSTANTS))


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_constant(each) for each in value)
    return isinstance(value, _CONSTANTS)
