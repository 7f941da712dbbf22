"""docs/methods.md is what docs/methods_table.py writes now, and its picture of costs comes from a file."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("methods_table", ROOT / "docs" / "methods_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(program) -> None:
    page = program.PAGE.read_text(encoding="utf-8")
    assert program.renewed(page) == page, "run python docs/methods_table.py"
    assert program.renewed(program.renewed(page)) == program.renewed(page)


def test_costs_come_from_the_newest_file_of_a_gpu(program, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    assert "not been measured" in program.tables()
    for name, date, cost in (
        ("methods-x-cpu", "2026-03", 9.0),
        ("methods-a", "2026-01", 8.0),
        ("methods-b", "2026-02", 7.0),
    ):
        fields = {
            "model": "small",
            "method": "mixup",
            "cost": cost,
            "device": "D",
            "torch": "2",
            "commit": "c",
            "date": date,
        }
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(fields))
            writer.writeheader()
            writer.writerow(fields)
    found = program.tables()
    (line,) = [line for line in found.splitlines() if line.startswith("| `mixup(")]
    assert "| 7.00 | - |" in line and "results/methods-b.md" in found
