"""Build frozen dataclasses from a nested mapping, such as a YAML file. Unknown keys and wrong types are refused."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from ...errors import ArgumentError, bad_argument
from ...validation import integer, number

Settings = TypeVar("Settings")

#: In the metadata of a field: a text that may be `on` or `off`, which YAML reads as true and false.
SWITCH = "switch"
#: The most levels of nesting in a setting that may hold any names, such as `model.arguments`.
_DEEPEST = 20


class UnquotedTextError(ArgumentError):
    """A number, a boolean or nothing where a text is expected: in YAML, a text that looks like one needs quotes."""


def build_settings(
    cls: type[Settings], content: Any, path: str = "", kinds: Mapping[str, type[Any]] | None = None
) -> Settings:
    """The dataclass `cls` with the fields that `content` names; the others keep their defaults.

    `kinds` maps the name of a field to the class to build, for fields that are annotated with a base class.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: int = 0
    ...     y: int = 0
    >>> build_settings(Point, {"x": 3})
    Point(x=3, y=0)
    >>> build_settings(Point, {"xx": 3}, path="point")
    Traceback (most recent call last):
    attentiondrop.errors.ArgumentError: point.xx: no such setting, did you mean 'x'? There are x, y
    """
    if not isinstance(content, Mapping):
        raise bad_argument(path or "recipe", "a mapping of settings", content)
    hints = _hints(cls) | dict(kinds or {})  # type: ignore[arg-type]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields]
    switches = {field.name for field in fields if field.metadata.get(SWITCH)}
    values = {}
    for key, value in content.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in names:
            raise _unknown_setting(where, str(key), names, hints)
        if key in switches and isinstance(value, bool):
            value = "on" if value else "off"
        values[key] = _coerced(hints[key], value, where)
    try:
        return cls(**values)
    except ArgumentError as error:
        named = not path or str(error).startswith(f"{path}.")
        raise (error if named else ArgumentError(f"{path}.{error}")) from None


@lru_cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unknown_setting(where: str, key: str, names: list[str], hints: Mapping[str, Any]) -> ArgumentError:
    """The error for an unknown setting. One that a section below has is suggested with its whole path."""
    sections = {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}
    below = [name for name, cls in sections.items() if key in {field.name for field in dataclasses.fields(cls)}]
    if not below:
        return unknown(where, key, names)
    above = where.removesuffix(key)
    return ArgumentError(f"{where}: no such setting, did you mean {above + below[0] + '.' + key!r}?")


def unknown(
    where: str, name: str, choices: Iterable[str], what: str = "setting", list_command: str = ""
) -> ArgumentError:
    """An error for a name that does not exist. It suggests the closest name and lists all of them.

    With `list_command`, the names are not listed: the command does that.
    """
    known = list(choices)
    error = unlisted(where, name, known, what)
    others = f"`{list_command}` lists all" if list_command else f"There are {', '.join(known)}"
    return ArgumentError(f"{error}{'' if str(error).endswith('?') else '.'} {others}")


def unlisted(where: str, name: str, choices: Iterable[str], what: str) -> ArgumentError:
    """As `unknown`, without the list, for when there are too many names."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return ArgumentError(f"{where}: no such {what}" + (f", did you mean {close[0]!r}?" if close else ""))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `changes`. Nested mappings are merged, other values are replaced.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def _coerced(hint: Any, value: Any, where: str) -> Any:
    """`value` converted to the annotated type: nested dataclasses, tuples from lists, floats from integers."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(kind):
        return build_settings(kind, value, where)  # type: ignore[arg-type]
    origin = typing.get_origin(kind)
    if origin in (tuple, list) and isinstance(value, (list, tuple)):
        item = typing.get_args(kind)[0]
        return origin(_coerced(item, one, f"{where}[{index}]") for index, one in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        item = typing.get_args(kind)[1]
        return {key: _coerced(item, one, f"{where}.{key}") for key, one in _plain(value, where).items()}
    if kind is float and isinstance(value, str):
        # YAML reads 1e-3 as a text, because its numbers need a decimal point.
        try:
            return float(value)
        except ValueError:
            pass
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(where, value, -math.inf)
    accepted: Any = {float: float, int: int, str: str, bool: bool}.get(kind, object)
    if kind is typing.Any:
        return value
    if origin is not None or not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        names = {float: "a number", int: "an integer", str: "a text", bool: "true or false"}
        expected = names.get(kind, "a list" if origin in (tuple, list) else "a mapping")
        error = bad_argument(where, expected, value)
        raise UnquotedTextError(str(error)) if kind is str and not isinstance(value, (list, Mapping)) else error
    if kind is str:
        check_text(where, value)
    return integer(where, value) if kind is int else value


def check_text(where: str, text: str) -> None:
    """Refuse a text that cannot be stored in a file or be part of a path."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise bad_argument(where, "a text without zero bytes and half characters", text)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Check values under free names, as in `model.arguments`. JSON must be able to hold them: every run stores them."""
    if depth > _DEEPEST:
        raise bad_argument(where, f"at most {_DEEPEST} levels of nesting", value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise bad_argument(where, "names that are texts", key)
        return {key: _plain(one, f"{where}.{key}", depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{where}[{index}]", depth + 1) for index, one in enumerate(value)]
    if isinstance(value, str):
        check_text(where, value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        integer(where, value) if isinstance(value, int) else number(where, value, -math.inf)
    elif value is not None and not isinstance(value, bool):
        raise bad_argument(where, "a number, a text, true, false, null, a list or a mapping", value)
    return value
