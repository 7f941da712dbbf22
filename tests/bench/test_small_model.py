"""The benchmark of a small model runs to its end on a CPU, and lists what it cannot measure."""

from __future__ import annotations

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("timm")
pytest.importorskip("accelerate")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "small_model.py"


def test_rows_are_measured_or_have_a_reason(tmp_path, monkeypatch, capsys) -> None:
    small = ["--device", "cpu", "--rounds", "1", "--steps", "1", "--batch", "2", "--depth", "1", "--warm-start"]
    rows = ["eager, none", "eager, hard*", "graph of eager, none", "train none*"]
    monkeypatch.setattr(sys, "argv", ["small_model.py", *small, "--out", str(tmp_path), "--rows", *rows])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 0
    (table,) = tmp_path.glob("small-model-*.md")
    assert table.read_text() in capsys.readouterr().out
    with table.with_suffix(".csv").open() as file:
        found = {row["row"]: row for row in csv.DictReader(file)}
    assert float(found["eager, none"]["ratio"]) == 1.0 and float(found["eager, hard(p=0.1,k=5)"]["ratio"]) > 0
    assert found["graph of eager, none"]["remark"] == "cannot run: CUDA graphs need CUDA"
    assert re.search(r"^- none: \d+\.\d\d s \(not captured, on a CPU\)$", table.read_text(), re.MULTILINE)
    assert all(float(found[f"train none, capture {capture}"]["img/s"]) > 0 for capture in ("auto", "off"))


def test_no_such_row_is_an_error(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["small_model.py", "--device", "cpu", "--out", str(tmp_path), "--rows", "nothing"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 2 and "--rows: expected one of eager, none" in capsys.readouterr().err
