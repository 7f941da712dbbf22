"""The tables of docs/speed.md follow the result files."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tables(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with result files of its own."""
    found = docs_module("speed_tables")
    for file in found.RESULTS.glob("*.csv"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(found, "RESULTS", tmp_path)
    return found


def change(file: Path, column: str, value: str, **where: str) -> None:
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        if all(row[name] == wanted for name, wanted in where.items()):
            row[column] = value
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def line(table: str, start: str) -> str:
    (found,) = [one for one in table.splitlines() if one.startswith(f"| {start}")]
    return found


def test_a_new_figure_shows_everywhere(tables: Any) -> None:
    change(tables.RESULTS / f"{tables.VIT}.csv", "ratio", "0.5", row=tables.HARD)
    assert line(tables.vit(), f"`{tables.HARD}`").startswith(f"| `{tables.HARD}` | 0.50 |")
    assert "| 0.50 | 1." in line(tables.training(), "[ViT-B/16](../benchmarks/results/vit-h200-torch2.11.md)")
    assert tables.in_a_sentence().startswith("compiled ViT-B/16 0.50 (1.")
    change(tables.RESULTS / f"{tables.VIT_EAGER}.csv", "ratio", "0.4", row=tables.HARD)
    assert "eager (an earlier run) | 0.40 | 0." in tables.training()
    assert "without `torch.compile`: 0.40 (0." in tables.in_a_sentence()


def test_a_new_figure_of_longer_rows(tables: Any) -> None:
    change(tables.RESULTS / f"{tables.ATTENTION}.csv", "plain_ratio", "12.345", length="1024", row=tables.HARD)
    assert "| 12.3 |" in line(tables.longer_rows(), f"`{tables.HARD}`")
    assert "to 12.35 times as long, with blur " in tables.longer_in_a_sentence()


def test_speeds_of_a_small_model_have_ratios_only_to_the_plain_row(tables: Any) -> None:
    change(tables.RESULTS / f"{tables.SMALL}.csv", "img/s", "12345.6", row="eager, none")
    assert line(tables.small_models(), "eager").startswith("| eager | 12,300 | ")
    assert "(" not in line(tables.small_models(), "`attentiondrop train` ")
