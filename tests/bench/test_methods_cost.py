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


SMALL = ["--device", "cpu", "--rounds", "1", "--steps", "1", "--batch", "2", "--depth", "1"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the program; the lines of its file by method."""

    def program(*arguments: str) -> dict[str, dict[str, str]]:
        monkeypatch.setattr(sys, "argv", ["methods_cost.py", *SMALL, "--out", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(PROGRAM), run_name="__main__")
        assert end.value.code == 0, end.value.code
        (path,) = tmp_path.glob("methods-*.csv")
        with path.open() as file:
            return {row["method"]: row for row in csv.DictReader(file)}

    return program


def test_methods_are_measured_or_have_a_reason(run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("attentiondrop.experiments.methods.comparators.droppath.DropPath.change", _broken)
    found = run("--methods", "none", "longer", "longer(times=1.5)", "droppath")
    (table,) = tmp_path.glob("methods-*.md")
    assert capsys.readouterr().out == table.read_text()  # printed as it goes
    assert float(found["none"]["cost"]) == float(found["none"]["ratio"]) > 0
    assert float(found["longer"]["cost"]) == pytest.approx(2 * float(found["longer"]["ratio"]))
    some = next(row for method, row in found.items() if "times=1.5" in method)
    assert float(some["cost"]) == pytest.approx(1.5 * float(some["ratio"]))
    assert found["droppath"]["note"] == "cannot run: RuntimeError: broken" and not found["droppath"]["cost"]


def test_a_run_that_was_stopped_is_continued(run, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("attentiondrop.experiments.methods.comparators.mixup.Mixup.act", _broken)
        first = run("--methods", "none", "mixup", "--commit", "older")
        # A stop in the middle of the last method: those before it are in the file.
        broken.setattr("attentiondrop.experiments.methods.comparators.longer.Longer.training", _stopped)
        with pytest.raises(KeyboardInterrupt):
            run("--methods", "none", "mixup", "longer", "--commit", "older")
    (path,) = tmp_path.glob("methods-*.csv")
    found = run("--methods", "none", "mixup", "longer", "--commit", "newer", "--skip-known", str(path))
    assert list(found) == ["none", "mixup", "longer"]
    assert first["mixup"]["note"] and not found["mixup"]["note"]  # what could not run is tried again
    assert [found[method]["commit"] for method in found] == ["older", "newer", "newer"]
    again = run("--methods", "none", "--commit", "newest", "--skip-known", str(path))
    assert again == found  # nothing was left to measure, and no line was lost
    path.write_text(path.read_text().replace(" CPU", " GPU"))
    with pytest.raises(SystemExit, match="--skip-known: expected lines of"):
        runpy.run_path(str(PROGRAM), run_name="__main__")


def _broken(self, *arguments) -> None:
    raise RuntimeError("broken")


def _stopped(self, *arguments) -> None:
    raise KeyboardInterrupt
