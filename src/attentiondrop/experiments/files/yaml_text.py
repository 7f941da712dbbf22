"""Read YAML that a person wrote, with limits. Text that is too deep, too large or ambiguous is one clear error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import ArgumentError, bad_argument

#: Far more than a recipe needs. An alias counts as many values as the part that it repeats.
_MOST_BYTES, _MOST_VALUES, _DEEPEST = 1_000_000, 10_000, 20


def read_yaml_file(path: Path) -> Any:
    """The content of a YAML file. Raises an `ArgumentError` with its path if it is not YAML or is too large."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ArgumentError(f"{path}: expected a recipe, which has less than a megabyte, found a larger file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: expected text in UTF-8, found another byte at position {error.start}") from None
    return read_yaml(text, str(path))


def read_yaml(text: str, name: str) -> Any:
    """The values in `text`, in the types of YAML. Errors begin with `name`, which says where the text comes from."""
    try:
        _check_size(text, name)
        return yaml.load(text, _Loader)  # a SafeLoader
    except ArgumentError:
        raise
    # PyYAML also raises the errors of int(), date() and others for a bad value.
    except Exception as error:
        raise ArgumentError(f"{name}: expected YAML, but {' '.join(str(error).split())}") from None


def read_yaml_value(text: str, name: str) -> Any:
    """As `read_yaml`, for a value on a command line: a comment there is a part of the value that would be lost."""
    content = read_yaml(text, name)
    end = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        # Between two tokens there are only spaces and comments.
        if "#" in text[end : token.start_mark.index]:
            expected = "a value without a YAML comment (a text with # needs quotes within those of the shell)"
            raise bad_argument(name, expected, text)
        end = max(end, token.end_mark.index)
    return content


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is given twice. PyYAML would silently keep the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.constructor.ConstructorError(
                        None, None, f"line {line} gives {key.value!r} a second time"
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: Any, node: Any) -> Any:
    """The number that everybody reads. YAML 1.1 takes 010 for eight, and 1:30 for ninety."""
    text = loader.construct_scalar(node)
    if ":" in text:
        return text
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        line = node.start_mark.line + 1
        raise yaml.constructor.ConstructorError(
            None, None, f"line {line} has {text}: write a number without zeros at its beginning, and a text in quotes"
        )
    return loader.construct_yaml_int(node) if node.tag == _INTEGER else loader.construct_yaml_float(node)


_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.add_constructor(_INTEGER, _number)
_Loader.add_constructor(_FLOAT, _number)


@dataclass
class _Extent:
    """How many values a part of the text has once aliases are written out, and how many levels."""

    values: int = 1
    levels: int = 1
    anchor: str | None = None


def _check_size(text: str, name: str) -> None:
    """Count values and levels before anything is built, because a few aliases can stand for billions of values."""
    anchors: dict[str, _Extent] = {}
    open_parts: list[_Extent] = [_Extent()]

    def add(extent: _Extent) -> None:
        outer = open_parts[-1]
        outer.values += extent.values
        outer.levels = max(outer.levels, extent.levels + 1)
        if outer.values > _MOST_VALUES:
            raise ArgumentError(f"{name}: expected at most {_MOST_VALUES} values, aliases written out, found more")
        if len(open_parts) + extent.levels > _DEEPEST:
            raise ArgumentError(f"{name}: expected at most {_DEEPEST} levels of nesting, found more")

    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append(_Extent(anchor=event.anchor))
            if len(open_parts) > _DEEPEST:
                raise ArgumentError(f"{name}: expected at most {_DEEPEST} levels of nesting, found more")
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = open_parts.pop()
            if closed.anchor is not None:
                anchors[closed.anchor] = closed
            add(closed)
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                anchors[event.anchor] = _Extent()
            add(_Extent())
        elif isinstance(event, yaml.AliasEvent):
            if any(part.anchor == event.anchor for part in open_parts):
                raise ArgumentError(f"{name}: expected values, found that {event.anchor!r} contains itself")
            add(anchors.get(event.anchor, _Extent()))
