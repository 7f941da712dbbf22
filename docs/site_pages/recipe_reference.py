"""The settings of a recipe with types, defaults and meaning, from the dataclasses that check a recipe."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

from sphinx.pycode import ModuleAnalyzer

from attentiondrop.experiments.config.recipe_files import SHIPPED, read_recipe, shipped
from attentiondrop.experiments.config.schema import (
    MeasureSettings,
    Recipe,
    TrainingSettings,
    TuningSettings,
    sections_of,
)
from attentiondrop.experiments.files.yaml_text import read_yaml
from attentiondrop.experiments.tasks.registry import DEFAULT, TASKS

from .markdown import code, prose, table

_CHOICES = re.compile(r"one of `([A-Z_]+)`")
_HEADINGS = ("setting", "type", "default", "meaning")
_SHARED = {"training": TrainingSettings, "measure": MeasureSettings, "tuning": TuningSettings}
#: Types of settings as a reader of YAML calls them.
_WORDS = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "None": "null",
    "dict[str, Any]": "mapping",
    "tuple[str, ...]": "list of texts",
    "tuple[float, ...]": "list of numbers",
}


def settings() -> str:
    """A table for each section; those that differ between tasks once for each task."""
    top = [field for field in dataclasses.fields(Recipe) if field.name not in _SHARED | sections_of(TASKS[DEFAULT])]
    parts = ["## The recipe itself", _table(Recipe, "", [field.name for field in top])]
    for section, cls in _SHARED.items():
        parts += [f"## `{section}`", _summary(cls), _table(cls, section)]
    for name, task in TASKS.items():
        parts.append(f"## Task `{name}`")
        for section, cls in sections_of(task).items():
            parts += [f"### `{section}` of {name}", _summary(cls), _table(cls, section)]
    return "\n\n".join(parts)


def recipes() -> str:
    """The shipped recipes: what they are for, their sizes, and their text."""
    rows, texts = [], []
    for name in shipped():
        text = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
        # `opus` has no default for its files.
        recipe = read_recipe(name, None, ["data.train=PAIRS"] if name == "opus" else [])
        about = re.match(r"(?:#.*\n)+", text)
        sentence = " ".join(line.strip("# ") for line in about[0].splitlines()) if about else ""
        rows.append(
            [
                code(name),
                prose(sentence.split(". ")[0].rstrip(".")),
                code(recipe.task),
                ", ".join(f"**{size}**" if size == recipe.size else size for size in _sizes(name)),
            ]
        )
        texts.append(f"<details><summary>{name}.yaml</summary>\n\n```yaml\n{text}```\n\n</details>")
    return "\n\n".join([table(("recipe", "what it is", "task", "sizes (default in bold)"), rows), *texts])


def _sizes(name: str) -> list[str]:
    content = read_yaml((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name)
    inherited = _sizes(content["extends"]) if "extends" in content else []
    return list(content.get("sizes") or inherited)


def _table(cls: type[Any], section: str, names: list[str] | None = None) -> str:
    meanings = _meanings(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if names is None or field.name in names:
            path = f"{section}.{field.name}" if section else field.name
            meaning = meanings.get(field.name, "")
            rows.append([code(path), _type(field), code(_default(field)), prose(meaning)])
    return table(_HEADINGS, rows)


def _type(field: dataclasses.Field[Any]) -> str:
    return " or ".join(_WORDS[part] for part in str(field.type).split(" | "))


def _default(field: dataclasses.Field[Any]) -> str:
    """The default as YAML writes it."""
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if value != "" else '""'


def _summary(cls: type[Any]) -> str:
    """The docstring up to its list of fields."""
    text = re.split(r"\n\s*(?:Args|Attributes|Example):", cls.__doc__ or "")[0]
    return prose(re.split(r"\n\s*>>>", text)[0])


def _meanings(cls: type[Any]) -> dict[str, str]:
    """Field -> meaning: from the docstring's list, or from the comment `#:` above the field; bases first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        comments = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        found |= {name: " ".join(lines) for (owner, name), lines in comments.items() if owner == base.__name__}
        found |= _listed(base.__dict__.get("__doc__") or "")
        module = sys.modules[base.__module__]
        for name, text in found.items():
            found[name] = _CHOICES.sub(lambda one: _choices(module, one[1]), text)  # noqa: B023
    return found


def _choices(module: Any, constant: str) -> str:
    """`one of NAMES` with the names."""
    return "one of " + ", ".join(code(one) for one in getattr(module, constant))


def _listed(docstring: str) -> dict[str, str]:
    """The entries of `Args:` or `Attributes:`."""
    _, _, text = docstring.partition("Args:\n") if "Args:\n" in docstring else docstring.partition("Attributes:\n")
    entries: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < 8:
            break
        start = re.match(r" {8}([\w, ]+): (.*)", line)
        if start:
            name = start[1]
            entries[name] = start[2]
        elif name and line.strip():
            entries[name] += " " + line.strip()
    # One entry may be about several fields.
    return {field: text for names, text in entries.items() for field in names.split(", ")}
