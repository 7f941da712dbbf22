"""The benchmark of steps on sequences runs to its end on a CPU, and both loops train on the same number of tokens."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "sequence_step.py"


def test_both_loops_are_measured(tmp_path, monkeypatch, capsys) -> None:
    rows = ["translation, *, none", "language, *, hard*", "language, *, none"]
    command = ["sequence_step.py", "--device", "cpu", "--quick", "--out", str(tmp_path), "--rows", *rows]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 0
    (table,) = tmp_path.glob("sequence-step-*.md")
    assert table.read_text() in capsys.readouterr().out
    with table.with_suffix(".csv").open() as file:
        found = {row["row"]: row for row in csv.DictReader(file)}
    assert len(found) == 6 and not any(row["remark"] for row in found.values())
    for task in ("translation", "language"):
        assert float(found[f"{task}, bare, none"]["/ bare"]) == float(found[f"{task}, loop, none"]["/ plain"]) == 1.0
        assert float(found[f"{task}, loop, none"]["/ bare"]) > 0
        assert found[f"{task}, loop, none"]["asked"] == "/ bare >= 0.90"
    hard = found["language, loop, hard(p=0.1,k=5)"]
    assert float(hard["/ plain"]) > 0 and hard["asked"] == "/ plain >= 0.93"


def test_no_such_row_is_an_error(tmp_path, monkeypatch, capsys) -> None:
    command = ["sequence_step.py", "--device", "cpu", "--quick", "--out", str(tmp_path), "--rows", "nothing"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 2 and "--rows: expected one of translation, bare, none" in capsys.readouterr().err
