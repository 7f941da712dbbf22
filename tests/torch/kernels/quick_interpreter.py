"""Triton's interpreter, without what it repeats for every call of a function inside a kernel.

Before each such call, it replaces all functions of its language by its own, although they are replaced already since the kernel
was launched. That takes more than a third of the time of these tests. Here, it is done once for each launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton.language import core
from triton.runtime import interpreter


def replace_the_language_once() -> None:
    """Called again while the functions are replaced, the interpreter has nothing to do, and nothing to restore."""
    tl, replace = interpreter.tl, interpreter._patch_lang
    nothing = SimpleNamespace(restore=lambda: None)

    @cache
    def languages(function: Callable[..., Any]) -> list[Any]:
        return [value for value in function.__globals__.values() if value is tl or value is tl.core]

    def replace_once(function: Callable[..., Any]) -> Any:
        is_replaced = not any(core.is_builtin(language.load) for language in languages(function))
        return nothing if is_replaced else replace(function)

    interpreter._patch_lang = replace_once
