"""Tables of docs/evidence with runs that went wrong."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", [str(EVIDENCE), *sys.path])
    yield importlib.import_module("tables")
    sys.modules.pop("tables", None)


def test_a_method_without_a_finished_run_is_no_baseline(tables: Any, tmp_path: Path) -> None:
    lines = ["method,seed,part,status,test_accuracy"]
    lines += [f"{method},{seed},runs,finished,0.7{seed}" for method in ("none", "blur") for seed in range(3)]
    lines += [f"hard,{seed},runs,diverged," for seed in range(3)]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("task: classification\n", encoding="utf-8")
    found = [line.split(" | ") for line in tables.table(tables.read(tmp_path)).splitlines()[2:]]
    assert [cells[3] for cells in found] == ["baseline", "0.00", "-"]
    assert found[2][1:3] == ["0 of 3", "-"] and found[2][6].strip(" |") == "not resolved"
