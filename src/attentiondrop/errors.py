"""Every error and warning that the library raises on purpose.

All errors are `ValueError` subclasses, so that `except ValueError` works for people who do not know the library.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Longer texts of a value are cut off in messages.
_LONGEST = 300


class AttentionDropError(ValueError):
    """Base of every error of the library."""


class ArgumentError(AttentionDropError):
    """A value is outside what the argument accepts. The message names argument, expectation and value."""


class ShapeError(AttentionDropError):
    """Tensors whose shapes do not belong together."""


class ParseError(AttentionDropError):
    """A text that does not describe a spec."""


class BackendError(AttentionDropError):
    """A backend that cannot run what it was explicitly asked to run."""


class AttachError(AttentionDropError):
    """A model that cannot be attached to as requested."""


class AttentionDropWarning(UserWarning):
    """Something is allowed, but is probably a mistake."""


def bad_argument(name: str, expected: str, received: Any) -> ArgumentError:
    """The error for a wrong argument; all of the library uses this wording."""
    return ArgumentError(f"{name}: expected {expected}, received {_shown(received)}")


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest of `choices`, or nothing if none is close.

    >>> did_you_mean("hrad", ["hard", "blur"])
    "; did you mean 'hard'?"
    """
    close = difflib.get_close_matches(name, list(choices), n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    """The value as text, cut off at `_LONGEST` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # `repr` raises for integers with thousands of digits and for values that are nested too deeply.
        text = f"an {type(value).__name__} of {value.bit_length()} bits" if isinstance(value, int) else str(type(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


_warned: set[str] = set()
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


@contextmanager
def without_advice() -> Iterator[None]:
    """Within, `warn_once` is silent: values are only checked, and whoever uses them is warned then."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def warn_once(topic: str, message: str, *packages: str) -> None:
    """Warn once per `topic` in this process (Python's own filters would warn once per call site).

    The warning points at the first line outside of this package, and of `packages`.
    """
    if topic in _warned or _is_quiet.get():
        return
    _warned.add(topic)
    warn_outside(message, *packages)


def warn_outside(message: str, *packages: str) -> None:
    """Warn and point at the first line outside of this package, and of `packages`."""
    inside = {__package__, *packages}
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AttentionDropWarning, stacklevel=level)


def forget_warnings() -> None:
    """Let `warn_once` warn again about every topic (used by tests)."""
    _warned.clear()
