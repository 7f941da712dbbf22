"""The summary: its numbers, and that table and JSON show the same ones."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from attentiondrop.experiments.compare import compare
from attentiondrop.experiments.methods import read_methods
from attentiondrop.experiments.record import Metrics, RunResult
from attentiondrop.experiments.table import COLUMNS, note, render, summarise, to_json


def result(method: str, seed: int, accuracy: float | None) -> RunResult:
    metrics = None if accuracy is None else Metrics(accuracy=accuracy, ece=0.02 + seed / 100, nll=0.5)
    status = "diverged" if metrics is None else "finished"
    return RunResult(method, seed, {}, "", {}, status, [1.0], metrics, 10.0 + seed)


def shown(rows, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(rows, "title"))
    return console.file.getvalue()


def test_mean_and_sample_deviation_over_the_seeds() -> None:
    rows = summarise([result("a", 0, 0.9), result("b", 0, 0.5), result("a", 1, 0.94), result("b", 1, 0.5)])
    assert [row.method for row in rows] == ["a", "b"]
    assert rows[0].accuracy_percent.mean == pytest.approx(92.0)
    assert rows[0].accuracy_percent.std == pytest.approx(4 / 2**0.5)
    assert rows[0].ece_percent.mean == pytest.approx(2.5)
    assert rows[0].seconds.mean == 10.5
    assert "92.0 ± 2.8" in shown(rows)


def test_one_seed_has_no_deviation() -> None:
    (row,) = summarise([result("a", 0, 0.9)])
    assert row.accuracy_percent.std is None
    assert "±" not in shown([row])


def test_diverged_runs_stay_in_the_table() -> None:
    rows = summarise([result("a", 0, 0.9), result("b", 0, None), result("a", 1, None), result("b", 1, None)])
    assert (rows[0].accuracy_percent.mean, rows[0].diverged, rows[0].runs) == (90.0, 1, 2)
    assert rows[1].accuracy_percent is None
    assert "1 of 2" in shown(rows)
    assert "2 of 2" in shown(rows)
    json.dumps(to_json(rows, [result("a", 0, 0.9)]), allow_nan=False)


def test_the_json_file_holds_the_numbers_of_the_table(tiny, listener, tmp_path: Path) -> None:
    rows = compare(read_methods(["none", "dropout"]), 2, tiny, tmp_path, listener)
    stored = json.loads((tmp_path / "results.json").read_text())
    cells = [line.split() for line in shown(rows).splitlines() if "±" in line]
    assert len(cells) == len(stored["rows"]) == len(rows) == 2
    for row, (method, *numbers) in zip(stored["rows"], cells, strict=True):
        assert row["method"] == method
        values = [number for number in numbers if number != "±"]
        for (field, _, digits), mean, std in zip(COLUMNS, values[::2], values[1::2], strict=True):
            assert f"{row[field]['mean']:.{digits}f}" == mean
            assert f"{row[field]['std']:.{digits}f}" == std
    for run in stored["runs"]:
        slug = {"none": "none", "dropout(p=0.1)": "dropout_p=0.1"}[run["method"]]
        single = json.loads((tmp_path / slug / f"seed{run['seed']}" / "result.json").read_text())
        assert (run["metrics"], run["seconds"]) == (single["metrics"], single["seconds"])


def test_the_default_methods_fit_a_terminal_of_80_columns() -> None:
    names = ["none", "dropout(p=0.1)", "hard(p=0.1,k=5)", "blur(sigma_max=0.5)"]
    text = shown(summarise([result(name, seed, 0.95) for seed in range(2) for name in names]))
    assert all(name in text for name in names)


def test_few_seeds_come_with_a_warning() -> None:
    assert note(1).startswith("One seed is too few to tell the methods apart")
    assert note(2).startswith("Two seeds are too few to tell the methods apart")
    assert note(4).startswith("4 seeds are too few")
    assert note(5) is None
