"""The benchmark of long rows runs to its end on a CPU; a row that is wrong is not timed."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

from attentiondrop.torch import functional

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "long_rows.py"


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[tuple[str, str, str], dict[str, str]]]:
    sizes = ["--heads", "1", "--size", "8", "--shortest", "16", "--longest", "32", "--window", "5"]
    command = ["long_rows.py", "--device", "cpu", "--dtype", "float32", *sizes, "--repeats", "2", "--seconds", "0.001"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    (table,) = tmp_path.glob("long-rows-*.csv")
    with table.open() as file:
        return end.value.code, {(one["row"], one["causal"], one["length"]): one for one in csv.DictReader(file)}


def test_every_row_at_every_length(tmp_path, monkeypatch, capsys) -> None:
    code, found = run(tmp_path, monkeypatch)
    assert code == 0 and len(found) == 5 * 2 * 2 and not any(one["remark"] for one in found.values())
    assert all(float(one["step ms"]) > 0 and float(one["/ SDPA"]) > 0 for one in found.values())
    assert "| blur, window |" in capsys.readouterr().out


def test_a_wrong_row_fails_its_check(tmp_path, monkeypatch) -> None:
    right = functional._run

    def wrong(route):
        output, weights = right(route)
        local = route.call.visibility.window is not None and route.call.inputs.q.dtype.itemsize == 4
        return (1.1 * output if local else output), weights

    monkeypatch.setattr(functional, "_run", wrong)
    code, found = run(tmp_path, monkeypatch)
    assert code == 1
    for (name, _, _), one in found.items():
        assert one["remark"].startswith("FAILED CHECK") == name.endswith("window"), one
