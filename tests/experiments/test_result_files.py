"""The files of the studies are parsed once, and again when they change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_table_is_read_anew_when_it_changes(docs_module: Callable[[str], Any], tmp_path: Path) -> None:
    files, table = docs_module("result_files"), tmp_path / "results.csv"
    table.write_text("method,seed\nnone,0\n", encoding="utf-8")
    first = files.csv_rows(table)
    assert first == [{"method": "none", "seed": "0"}] and files.csv_rows(table) is first
    table.write_text("method,seed\nnone,1\n", encoding="utf-8")
    os.utime(table, ns=(1, 1))  # with the same number of bytes
    assert files.csv_rows(table) == [{"method": "none", "seed": "1"}]
    table.write_text("method,seed\nnone,10\n", encoding="utf-8")
    os.utime(table, ns=(1, 1))  # at the same time
    assert files.csv_rows(table) == [{"method": "none", "seed": "10"}]


def test_a_recipe_is_read_anew_when_it_changes(docs_module: Callable[[str], Any], tmp_path: Path) -> None:
    files = docs_module("result_files")
    for number, command in enumerate(("one", "two")):
        (tmp_path / "recipe.yaml").write_text(f"command: {command}\n", encoding="utf-8")
        os.utime(tmp_path / "recipe.yaml", ns=(number, number))
        found = files.recipe_of(tmp_path)
        assert found == {"command": command} and files.recipe_of(tmp_path) is found
