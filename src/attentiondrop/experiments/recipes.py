"""Finding and reading recipes: YAML files of differences from the defaults, shipped or the user's own."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ..errors import ArgumentError, bad_argument
from .recipe import Recipe
from .settings import build_settings, merged, unknown

#: Where the shipped recipes lie.
SHIPPED = files("attentiondrop") / "recipes"
SIZES = "sizes"
EXTENDS = "extends"
_SUFFIXES = (".yaml", ".yml")


def shipped() -> list[str]:
    """The names of the recipes that come with the library.

    >>> shipped()
    ['cifar10', 'cifar100', 'digits', 'fashion-mnist', 'imagenet']
    """
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(name: str, size: str | None = None, changes: Iterable[str] = ()) -> Recipe:
    """The recipe `name`, a shipped one or a file, in one of its sizes, with changes such as `"training.epochs=3"`.

    >>> recipe = read_recipe("cifar10", "paper", ["training.epochs=1"])
    >>> recipe.model.name, recipe.training.batch_size, recipe.training.epochs
    ('vit_base_patch16_224', 256, 1)
    """
    content = _content(name)
    sizes = content.pop(SIZES, None) or {}
    default = content.pop("default_size", next(iter(sizes), None))
    chosen = default if size is None else size
    if chosen is not None:
        if chosen not in sizes:
            raise unknown(f"size {chosen!r} of {name}", chosen, sizes, "size")
        content = merged(content, sizes[chosen] or {})
    content = {"name": Path(name).stem, "size": chosen or "", **content}
    for change in changes:
        content = merged(content, _change(change))
    return build_settings(Recipe, content)


def _content(name: str, extending: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a recipe says, on top of what the one says that it extends."""
    path = Path(name)
    if name in extending:
        raise bad_argument(EXTENDS, "another recipe", " -> ".join((*extending, name)))
    if path.suffix in _SUFFIXES:
        text = path.read_text(encoding="utf-8")
    elif name in shipped():
        text = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        raise unknown(f"recipe {name!r}", name, [*shipped(), "or the path of a .yaml file"], "recipe")
    content = _yaml(text, name)
    if not isinstance(content, dict):
        raise bad_argument(f"recipe {name}", "a mapping of settings", content)
    parent = content.pop(EXTENDS, None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise bad_argument(EXTENDS, "the name or path of a recipe", parent)
    if Path(parent).suffix in _SUFFIXES:
        # One name for one file, however it is spelled, or a circle would not be noticed.
        parent = str((path.parent / parent).resolve())
    return merged(_content(parent, (*extending, name)), content)


def _change(text: str) -> dict[str, Any]:
    """`"training.epochs=3"` as a nested mapping."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise bad_argument("set", "SECTION.SETTING=VALUE, such as training.epochs=3", text)
    content: Any = _yaml(value, text)
    for key in reversed(path.strip().split(".")):
        content = {key: content}
    result: dict[str, Any] = content
    return result


def _yaml(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"{name}: expected YAML, but {' '.join(str(error).split())}") from None
