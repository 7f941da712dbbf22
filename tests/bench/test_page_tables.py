"""The tables of docs/keras.md, docs/long-sequences.md and docs/speed-goals.md follow the result files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tables(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with result files of its own."""
    found = docs_module("page_tables")
    for ending in ("csv", "md"):
        for file in found.speed_tables.RESULTS.glob(f"*.{ending}"):
            shutil.copy(file, tmp_path)
    monkeypatch.setattr(found.speed_tables, "RESULTS", tmp_path)
    return found


def replace(tables: Any, file: str, old: str, new: str) -> None:
    path = tables.speed_tables.RESULTS / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "file", "old", "new", "shown"),
    [
        ("keras", "keras-step-cpu-keras3.15.csv", ",1.137,1.104,1.155,", ",9.5,9.25,9.75,", "9.50 (9.25 - 9.75)"),
        ("long_sequences", "long-rows-h200-torch2.11.csv", ",3.62", ",7.77", "| 7.7"),
        ("instructions", "instruction-profile-sm90.md", "| 85 | 9.4 |", "| 85 | 7.7 |", "| forward | 7.7 | 13.1 |"),
    ],
)
def test_a_new_figure_shows(tables: Any, table: str, file: str, old: str, new: str, shown: str) -> None:
    assert shown not in getattr(tables, table)()
    replace(tables, file, old, new)
    assert shown in getattr(tables, table)()


def test_measured_goals_follow_their_files(tables: Any) -> None:
    before = tables.goals()
    assert set(before) == {*tables.GOALS, *tables.SHORT_GOALS}
    replace(tables, "short-rows-h200-torch2.11.md", "| 0.300 | 1.06 | 1.09 |", "| 0.300 | 2.22 | 1.09 |")
    assert tables.goals()["hard 197"] == before["hard 197"].partition(";")[0] + "; 2.22"
    ratios = tables.speed_tables.longer_ratios()
    assert before["blur 2048"] == f"{ratios[tables.BLUR, '8x32x2048x128, causal, 8 key heads']:.2f}"
