"""Find out which functions the forward of a module leads to, by reading its code without running it.

Names alone are not enough: `scaled_dot_product_attention` may be imported under another name, stored in an attribute,
or called by a helper. So this module looks up what the code loads (globals, their attributes, attributes of `self`). It
then reads the Python functions that it found in the same way, but not those of torch and the standard library.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import nn

#: How deep to follow calls. Attention in deeper ones is found by running the model (`find_by_running`).
_DEPTH = 12

_PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}


@dataclass
class Read:
    """What a forward leads to."""

    #: Every name that the code mentions.
    names: set[str] = field(default_factory=set)
    #: Every function that the code loads and that could be looked up, by `id`.
    functions: dict[int, Any] = field(default_factory=dict)
    #: The methods of the module that the code calls.
    methods: set[str] = field(default_factory=set)
    #: How many matrix products the code contains.
    products: int = 0

    def loads(self, function: Any) -> bool:
        """Whether this `function` object is among them, under any name."""
        return id(function) in self.functions


def read(module: nn.Module) -> Read:
    """What the forward of `module` leads to, through its class and through attributes of the instance."""
    return _read(type(module), module)


def read_methods(module: nn.Module) -> Read:
    """What any method of the module leads to, and not only its forward: the code of another module may call it."""
    found, seen, owner = Read(), set[Any](), Owner(type(module), module)
    for member in (member for cls in type(module).__mro__ for member in vars(cls).values()):
        function = plain_function(member)
        if function is not None and not is_foreign(function):
            _follow(function, owner, found, seen, _DEPTH)
    return found


def methods_of(cls: type[nn.Module]) -> set[str]:
    """The methods that the forward of `cls` leads to."""
    return _read(cls, None).methods


def _read(cls: type[nn.Module], module: nn.Module | None) -> Read:
    found = Read()
    function = plain_function(cls.forward)
    if function is not None and not is_foreign(function):
        _follow(function, Owner(cls, module), found, set(), _DEPTH)
    return found


class Owner(NamedTuple):
    """What `self` is in a method: a class, and the instance if there is one."""

    cls: type
    instance: Any

    def holds(self, name: str) -> bool:
        """Whether the instance itself has this attribute."""
        return name in getattr(self.instance, "__dict__", {})

    def lookup(self, name: str) -> Any:
        """The attribute, as it is stored; None if there is none."""
        return vars(self.instance)[name] if self.holds(name) else inspect.getattr_static(self.cls, name, None)


class Load(NamedTuple):
    """`root.path[0].path[1]...` in the code."""

    kind: str
    root: str
    path: tuple[str, ...]


class Loads(NamedTuple):
    """What a code object mentions, what it loads, and how many matrix products it has."""

    names: frozenset[str]
    loads: tuple[Load, ...]
    products: int


def _follow(function: FunctionType, owner: Owner | None, found: Read, seen: set[Any], depth: int) -> None:
    if (function, owner and id(owner.instance)) in seen or depth == 0:
        return
    seen.add((function, owner and id(owner.instance)))
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    first = parameters[0] if parameters and owner is not None else None
    for code in codes_in(function.__code__):
        names, loads, products = loads_in(code)
        found.names |= names
        found.products += products
        for target, target_owner in _targets(loads, function, owner, first, found):
            found.functions[id(target)] = target
            helper = plain_function(target)
            if helper is not None and not is_foreign(helper):
                _follow(helper, target_owner, found, seen, depth - 1)
        if owner is not None and "super" in names:
            for helper in _inherited(function, owner, names):
                found.functions[id(helper)] = helper
                if not is_foreign(helper):
                    _follow(helper, owner, found, seen, depth - 1)


def _targets(
    loads: tuple[Load, ...], function: FunctionType, owner: Owner | None, first: str | None, found: Read
) -> Iterator[tuple[Any, Owner | None]]:
    """The functions that these loads refer to, each with what `self` is in it."""
    for kind, root, path in loads:
        if kind == "local" or root == first:
            if root != first or owner is None or not path:
                continue
            value = owner.lookup(path[0])
            if isinstance(value, FunctionType) and issubclass(owner.cls, nn.Module) and not owner.holds(path[0]):
                found.methods.add(path[0])
            value, target_owner = _through(value, owner, path[1:])
        else:
            value = function.__globals__.get(root) if kind == "global" else closed_over(function, root)
            value, target_owner = _through(value, None, path)
        yield from _unwrapped(value, target_owner)


def _through(value: Any, owner: Owner | None, path: tuple[str, ...]) -> tuple[Any, Owner | None]:
    """The attribute `path` of `value`. Submodules are not entered: they are examined on their own."""
    for name in path:
        if value is None or isinstance(value, nn.Module):
            return None, None
        if isinstance(value, ModuleType):
            value, owner = vars(value).get(name), None
        elif isinstance(value, type):
            value, owner = inspect.getattr_static(value, name, None), None
        else:
            owner = Owner(type(value), value)
            value = owner.lookup(name)
    return value, owner


def _unwrapped(value: Any, owner: Owner | None) -> Iterator[tuple[Any, Owner | None]]:
    """The function inside a partial, a bound method, a property, a compiled function, or a callable object."""
    for _ in range(8):
        if isinstance(value, functools.partial | functools.partialmethod):
            value = value.func
        elif isinstance(value, MethodType):
            held = value.__self__
            if isinstance(held, nn.Module) and (owner is None or held is not owner.instance):
                return  # another module, which is examined on its own
            value, owner = value.__func__, None if isinstance(held, type) else Owner(type(held), held)
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value, owner = value.__func__, None
        elif isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_orig_callable"):
            value = value._torchdynamo_orig_callable
        else:
            break
    if callable(value) and not isinstance(value, type | nn.Module):
        yield value, owner
        call = inspect.getattr_static(type(value), "__call__", None)
        if not isinstance(value, FunctionType) and isinstance(call, FunctionType):
            yield call, Owner(type(value), value)


def _inherited(function: FunctionType, owner: Owner, names: frozenset[str]) -> Iterator[FunctionType]:
    """What `super().name` may refer to: the next definition after the class that defines `function`."""
    order = owner.cls.__mro__
    here = next((place for place, cls in enumerate(order) if function in map(plain_function, vars(cls).values())), 0)
    for name in names:
        above = next((vars(cls)[name] for cls in order[here + 1 :] if name in vars(cls)), None)
        helper = plain_function(above)
        if helper is not None:
            yield helper


def plain_function(member: Any) -> FunctionType | None:
    """The plain function behind a method, static method, class method or decorated function."""
    member = getattr(member, "__func__", member)
    member = inspect.unwrap(member) if callable(member) and hasattr(member, "__wrapped__") else member
    return member if isinstance(member, FunctionType) else None


def is_foreign(function: FunctionType) -> bool:
    """Whether it belongs to torch or to the standard library."""
    package = (function.__module__ or "").partition(".")[0]
    return package == "torch" or (package in sys.stdlib_module_names and package != "__main__")


def closed_over(function: FunctionType, name: str) -> Any:
    """The value of a variable of the function around this one; None if it has none."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    try:
        return cells[name].cell_contents
    except (KeyError, ValueError):  # it belongs to code nested in this function, or has no value yet
        return None


@functools.cache
def loads_in(code: CodeType) -> Loads:
    """What one code object loads. Attributes of unknown values (such as call results) are left out."""
    loads: list[Load] = []
    products: Counter[str] = Counter()
    chain: Load | None = None
    for instruction in dis.get_instructions(code):
        operation, value = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and chain is not None:
            chain = chain._replace(path=(*chain.path, value))
        elif operation in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP"):
            continue
        else:
            loads += [chain] if chain is not None else []
            chain = _root(operation, value)
        if operation == "BINARY_OP" and instruction.argrepr.startswith("@"):
            products["@"] += 1
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL") and value in _PRODUCTS:
            products[value] += 1
    loads += [chain] if chain is not None else []
    return Loads(frozenset(code.co_names), tuple(dict.fromkeys(loads)), products.total())


def _root(operation: str, value: Any) -> Load | None:
    if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
        return Load("global", value, ())
    if operation in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
        return Load("closure", value, ())
    if "LOAD_FAST" in operation:
        # Newer interpreters load two variables at once; attributes that follow belong to the second.
        return Load("local", value[-1] if isinstance(value, tuple) else value, ())
    return None


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions which are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)
