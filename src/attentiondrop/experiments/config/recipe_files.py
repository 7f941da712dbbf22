"""Find and read recipes. A recipe is a YAML file that lists only what differs from the defaults."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ArgumentError, AttentionDropError, bad_argument
from ..files.typed_settings import UnquotedTextError, check_text, merged, unknown
from ..files.yaml_text import read_yaml, read_yaml_file, read_yaml_value
from ..methods.grids import check_grids, check_tuning_grids
from ..methods.groups import expanded
from ..methods.parse import read_methods
from ..tasks.registry import find_task, task_of
from .schema import Recipe, build_recipe

#: The folder of the shipped recipes.
SHIPPED = files("attentiondrop") / "recipes"
EVIDENCE = "evidence"
SIZES = "sizes"
DEFAULT_SIZE = "default_size"
ABLATIONS = "ablations"
EXTENDS = "extends"
_SUFFIXES = (".yaml", ".yml")


def shipped() -> list[str]:
    """The names of the recipes that come with the library. Those of docs/evidence begin with `evidence/`.

    >>> [name for name in shipped() if "cifar100" in name]
    ['cifar100', 'evidence/cifar100']
    """
    folders = {"": SHIPPED, f"{EVIDENCE}/": SHIPPED / EVIDENCE}
    found = ((prefix, entry.name) for prefix, folder in folders.items() for entry in folder.iterdir())
    return sorted(prefix + Path(name).stem for prefix, name in found if name.endswith(".yaml"))


class Description(NamedTuple):
    """What a list says about a shipped recipe."""

    #: The comment at the top of its file.
    comment: str
    task: str
    sizes: list[str]
    default_size: str | None


def described(name: str) -> Description:
    """The description of a shipped recipe.

    >>> described("cifar100").sizes
    ['demo', 'small', 'paper']
    """
    lines = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    content = _content(name)
    sizes = list(content.get(SIZES) or {})
    return Description(
        " ".join(line.removeprefix("#").strip() for line in comment),
        task_of(content).name,
        sizes,
        content.get(DEFAULT_SIZE, next(iter(sizes), None)),
    )


def read_recipe(name: str, size: str | None = None, changes: Iterable[str] = ()) -> Recipe:
    """Read the recipe `name`, a shipped one or a file, in one of its sizes. A change is such as `"training.epochs=3"`.

    >>> recipe = read_recipe("cifar10", "paper", ["training.epochs=1"])
    >>> recipe.model.name, recipe.training.batch_size, recipe.training.epochs
    ('vit_base_patch16_224', 256, 1)
    """
    content, chosen = _in_size(_content(name), name, size)
    content = {"name": Path(name).stem, "size": chosen or "", **content}
    changed = content
    for change in changes:
        changed = merged(changed, _change(change))
    try:
        return _built(changed)
    except ArgumentError as of_changes:
        try:
            _built(content)
        except ArgumentError as error:  # the file is wrong even without the changes, so the message names the file
            raise ArgumentError(f"{name}: {_with_hint(error)}") from None
        # The shell takes the outer quotes away.
        raise _with_hint(of_changes, ": --set 'SECTION.SETTING=\"VALUE\"'") from None


def _with_hint(error: ArgumentError, example: str = "") -> ArgumentError:
    """The error, and how to write a text that YAML takes for a number, a boolean or nothing."""
    if not isinstance(error, UnquotedTextError):
        return error
    return ArgumentError(f"{error}; in quotes, 123, no and null are texts{example}")


def _built(content: dict[str, Any]) -> Recipe:
    recipe = build_recipe(content)
    # Only here, so that records of older versions can be read.
    if recipe.training.ema == 1.0:
        expected = "a number < 1: with 1, the average would stay at the weights after the first step"
        raise bad_argument("training.ema", expected, recipe.training.ema)
    try:
        read_methods(expanded(recipe.methods))
    except AttentionDropError as error:
        raise ArgumentError(f"methods: {error}") from None
    find_task(recipe.task).check(recipe.data, recipe.model)
    check_tuning_grids(recipe.tuning.grids, "tuning.grids")
    check_grids(recipe.ablations, ABLATIONS)
    return recipe


def _in_size(content: dict[str, Any], name: str, size: str | None) -> tuple[dict[str, Any], str | None]:
    """The settings of a recipe in one of its sizes, and the name of that size."""
    sizes = content.pop(SIZES, None) or {}
    expected = "a mapping from names of sizes to their settings"
    if not isinstance(sizes, dict):
        raise bad_argument(f"{name}: {SIZES}", expected, sizes)
    for key, settings in sizes.items():
        if not isinstance(key, str) or not isinstance(settings, dict | None):
            raise bad_argument(f"{name}: {SIZES}.{key}", expected, settings if isinstance(key, str) else key)
    default = content.pop(DEFAULT_SIZE, next(iter(sizes), None))
    if default is not None and not isinstance(default, str):
        raise bad_argument(f"{name}: {DEFAULT_SIZE}", "the name of a size", default)
    chosen: str | None = default if size is None else size
    if chosen is None:
        return content, None
    if chosen not in sizes:
        raise unknown(f"size {chosen!r} of {name}", chosen, sizes, "size")
    return merged(content, sizes[chosen] or {}), chosen


def _content(name: str, extending: tuple[str, ...] = ()) -> dict[str, Any]:
    """The settings of a recipe, merged over those of the recipe that it extends."""
    path = Path(name)
    if name in extending:
        raise bad_argument(f"{name}: {EXTENDS}", "another recipe", " -> ".join((*extending, name)))
    if path.suffix in _SUFFIXES:
        content = read_yaml_file(path)
    elif name in shipped():
        content = read_yaml((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name)
    else:
        raise unknown(f"recipe {name!r}", name, shipped(), "recipe or .yaml file", "attentiondrop recipes")
    if not isinstance(content, dict):
        raise bad_argument(name, "a mapping of settings", content)
    parent = content.pop(EXTENDS, None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise bad_argument(f"{name}: {EXTENDS}", "the name or path of a recipe", parent)
    check_text(f"{name}: {EXTENDS}", parent)
    if Path(parent).suffix in _SUFFIXES:
        # A file has one name here, however its path is spelled. Otherwise a circle of recipes would go unnoticed.
        parent = str((path.parent / parent).resolve())
    return _extended(_content(parent, (*extending, name)), content)


def _extended(parent: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """`content` over the recipe that it extends: what it says outside of its sizes wins over all sizes of `parent`.

    Ablations are a list of what to try, as methods are: its own take the place of those of `parent`.
    """
    own_ablations = ABLATIONS in content

    def kept(settings: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if not (own_ablations and key == ABLATIONS)}

    outside = {key: value for key, value in content.items() if key not in (SIZES, DEFAULT_SIZE)}
    sizes = parent.get(SIZES)
    if isinstance(sizes, dict):
        parent = {**parent, SIZES: {key: merged(kept(settings or {}), outside) for key, settings in sizes.items()}}
    return merged(kept(parent), content)


def _change(text: str) -> dict[str, Any]:
    """`"training.epochs=3"` as a nested mapping."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise bad_argument("set", "SECTION.SETTING=VALUE, such as training.epochs=3", text)
    content: Any = read_yaml_value(value, f"set {path.strip()}")
    for key in reversed(path.strip().split(".")):
        content = {key: content}
    result: dict[str, Any] = content
    return result
