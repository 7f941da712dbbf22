"""The committed files of the studies. Pages read them hundreds of times, so each is parsed once until it changes."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml


def csv_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a table. Do not change them: all readers share them."""
    return _rows(file, *_state(file))


def recipe_of(folder: Path) -> dict[str, Any]:
    """What recipe.yaml in the folder of a study says: the command, the commits, the recipe. Do not change it."""
    file = folder / "recipe.yaml"
    return _yaml(file, *_state(file))


def _state(file: Path) -> tuple[int, int]:
    """Changes with the file."""
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=256)
def _rows(file: Path, changed: int, size: int) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@lru_cache(maxsize=256)
def _yaml(file: Path, changed: int, size: int) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content
