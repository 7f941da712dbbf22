"""A copy of a function for which `scaled_dot_product_attention` means another function.

Only names are exchanged: the code is the same, and all other globals are those of the original at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from .own_calls import PATHS


class _Globals(dict[str, Any]):
    """The globals of a function, of which some mean something else."""

    def __init__(self, real: dict[str, Any], changed: dict[str, Any]) -> None:
        super().__init__(changed)
        self._real = real

    def __missing__(self, name: str) -> Any:
        return self._real[name]


class _Changed:
    """A module of which one attribute is another one."""

    def __init__(self, real: Any, name: str, value: Any) -> None:
        self._real = real
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _changed(real: Any, path: tuple[str, ...], value: Any) -> Any:
    """`real`, but the attribute at the end of the path is `value`."""
    return _Changed(real, path[0], _changed(getattr(real, path[0]), path[1:], value)) if path else value


def redirected(function: FunctionType, sdpa: Callable[..., Any]) -> FunctionType:
    """The copy."""
    real = function.__globals__
    changed = {name: _changed(value, PATHS[id(value)], sdpa) for name, value in real.items() if id(value) in PATHS}
    twin = FunctionType(
        # A code object of its own: what a compiler remembers about the original does not hold for the copy.
        function.__code__.replace(),
        _Globals(real, changed),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
