"""The benchmark of all methods runs to its end on a CPU, and lists what it cannot measure."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("timm")
pytest.importorskip("accelerate")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "methods_cost.py"


def test_methods_are_measured_or_have_a_reason(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("attentiondrop.experiments.methods.comparators.droppath.DropPath.change", _broken)
    small = ["--device", "cpu", "--rounds", "1", "--steps", "1", "--batch", "2", "--depth", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["methods_cost.py", *small, "--methods", "none", "longer", "droppath"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 0
    (table,) = tmp_path.glob("methods-*.md")
    assert table.read_text() in capsys.readouterr().out
    with table.with_suffix(".csv").open() as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    assert float(found["none"]["cost"]) == float(found["none"]["ratio"]) > 0
    assert float(found["longer"]["cost"]) == pytest.approx(2 * float(found["longer"]["ratio"]))
    assert found["droppath"]["note"] == "cannot run: RuntimeError: broken" and not found["droppath"]["cost"]


def _broken(self, model) -> None:
    raise RuntimeError("broken")
