"""The summary of a study: numbers computed by hand, and runs that failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.files.whole_files import DamagedRecordError
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.store import Request, Result, read_run, write_request, write_result
from attentiondrop.experiments.studies.plan import Ablation, Comparison, Entry, Grid, read_study, write_study
from attentiondrop.experiments.train.epoch_log import Epoch, write_epoch

from ..conftest import scored

Maker = Callable[..., Path]


def test_rows_by_hand(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.90, 0.92, 0.94], "hard(p=0.1,k=5)": [0.91, 0.94, 0.97]}, memory=True)
    found = summarise(read_study(out))
    baseline, row = found.rows
    assert found.baseline is baseline
    assert (row.count("finished"), row.count("diverged"), len(row.outcomes)) == (3, 0, 3)
    assert row.scores["accuracy"].mean == pytest.approx(0.94)
    assert row.scores["accuracy"].std == pytest.approx(0.03)
    assert row.scores["nll"].mean == pytest.approx(0.9 * 0.06 + 0.05)
    assert row.scores["brier"].mean == pytest.approx(1.4 * 0.06)
    assert row.scores["top5"].mean == pytest.approx(0.99)
    assert list(row.robust) == [0.0, 0.01, 0.02, 0.04]
    assert row.robust[0.01].mean == pytest.approx(0.94 * 0.8)
    assert row.seconds.mean == pytest.approx(19.0)
    assert row.throughput.mean == pytest.approx(860.0)
    assert row.throughput_ratio.mean == pytest.approx((850 / 900 + 860 / 910 + 870 / 920) / 3)
    assert row.memory_ratio.mean == pytest.approx(1.0)
    assert baseline.differences == {} and baseline.difference is None
    assert row.difference.mean == pytest.approx(0.02)
    assert row.difference.interval.high == pytest.approx(0.02 + 4.302653 * 0.01 / 3**0.5)
    assert row.holm_p == pytest.approx(row.difference.p_value)
    assert row.differences["nll"].mean == pytest.approx(-0.018)
    assert (found.comparisons, found.seeds) == (1, 3)


def test_p_values_are_adjusted_for_the_number_of_methods(comparison: Maker, tmp_path: Path) -> None:
    endings = {"none": [0.90, 0.91, 0.92], "dropkey(p=0.1)": [0.93, 0.95, 0.94], "dropkey(p=0.2)": [0.91, 0.97, 0.90]}
    _, first, second = summarise(read_study(comparison(tmp_path, endings))).rows
    assert first.difference.p_value < second.difference.p_value
    assert first.holm_p == pytest.approx(2 * first.difference.p_value)
    assert second.holm_p == pytest.approx(second.difference.p_value)


def test_all_other_metrics_are_corrected_together(comparison: Maker, tmp_path: Path) -> None:
    endings = {"none": [0.90, 0.91, 0.92], "dropkey(p=0.1)": [0.93, 0.95, 0.94], "dropkey(p=0.2)": [0.91, 0.97, 0.90]}
    rows = summarise(read_study(comparison(tmp_path, endings))).rows[1:]
    others = [row.differences[name] for row in rows for name in ("nll", "ece", "brier")]
    assert {name for row in rows for name in row.differences} == {"accuracy", "nll", "ece", "brier"}
    clearest = min(others, key=lambda each: each.p_value)
    assert clearest.holm_p == pytest.approx(6 * clearest.p_value) and clearest.holm_p < 1


def test_ratios_are_those_of_the_method_to_the_baseline(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.90, 0.92], "blur": [0.91, 0.94], "hard(p=0.1,k=5)": [0.9, 0.9]}, memory=True)
    baseline, blur, hard = summarise(read_study(out)).rows
    assert (baseline.memory_ratio.mean, blur.memory_ratio.mean) == (1.0, 1.5)
    assert blur.throughput_ratio.mean == 1.0 and hard.throughput_ratio.mean < 1


def curve(out: Path, method: str, seed: int, accuracies: list[float | None]) -> None:
    folder = run_folder(out, method, seed)
    write_request(folder, Request(method, seed, {}, {}), {})
    for index, accuracy in enumerate(accuracies, start=1):
        scores = None if accuracy is None else scored(accuracy, 1.0)
        write_epoch(folder, Epoch(index, 0.1, 1.0, scores, 1.0, 10))
    scores = scored(0.9, 0.1, 0.1, 0.1)
    write_result(folder, Result("finished", 1.0, len(accuracies), validation=scores, test=scores))


def test_convergence_speed_by_hand(tmp_path: Path) -> None:
    entries = [Entry(name, name, []) for name in ("none", "dropkey(p=0.1)", "dropkey(p=0.2)")]
    write_study(tmp_path, Comparison("c", {}, [0, 1], 0, entries))
    curve(tmp_path, "none", 0, [0.5, 0.7, 0.8])
    curve(tmp_path, "none", 1, [0.8, 0.6, 0.6])
    curve(tmp_path, "dropkey(p=0.1)", 0, [None, 0.665, 0.1])
    curve(tmp_path, "dropkey(p=0.1)", 1, [0.5, 0.6, 0.66])
    curve(tmp_path, "dropkey(p=0.2)", 0, [0.1, 0.2, 0.3])
    none, some, never = (row.reach for row in summarise(read_study(tmp_path)).rows)
    # The baseline ends at 0.8 and 0.6, so the target is 0.95 of 0.7.
    assert none.target == pytest.approx(0.665)
    assert none.epochs.mean == pytest.approx(1.5) and (none.reached, none.finished) == (2, 2)
    assert some.epochs.mean == 2.0 and (some.reached, some.finished) == (1, 2)
    assert never.epochs is None and (never.reached, never.finished) == (0, 1)


def test_runs_that_went_wrong_are_counted_not_hidden(comparison: Maker, tmp_path: Path) -> None:
    endings = {
        "none": [0.9, 0.91, 0.92, 0.9, 0.93, 0.9],
        "blur": ["diverged", "failed", None, "unfinished", "damaged", 0.9],
    }
    found = summarise(read_study(comparison(tmp_path, endings)))
    row = found.rows[1]
    assert [each.status for each in row.outcomes] == [
        "diverged",
        "failed",
        "missing",
        "unfinished",
        "damaged",
        "finished",
    ]
    assert row.scores["accuracy"].count == 1 and row.scores["accuracy"].std is None
    assert row.seconds.count == 1, "runs that went wrong end early"
    assert row.difference.seeds == (5,) and row.difference.left_out == (0, 1, 2, 3, 4)
    assert row.difference.interval is None
    details = [each.detail for each in row.outcomes]
    assert details[0] == "the loss stopped being a number after 2 epochs"
    assert details[1] == "after 2 epochs: RuntimeError: out of memory"
    assert details[2] == "no such run in the folder yet"
    assert details[3] == "started, 2 epochs recorded"
    assert "result.json cannot be read" in details[4]


def test_a_run_that_was_not_tested_does_not_count_and_one_epoch_is_one(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.9, 0.91, "failed"], "blur": [0.9, 0.91, 0.92]})
    for seed, changes in ((1, {"test": None}), (2, {"epochs": 1})):
        folder = run_folder(out, "none", seed)
        write_result(folder, dataclasses.replace(read_run(folder).result, **changes))
    tested, untested, failed = summarise(read_study(out)).rows[0].outcomes
    assert (tested.status, untested.status) == ("finished", "of another recipe")
    assert untested.detail == "the run in the folder is of another recipe: it was not tested"
    assert failed.detail == "after 1 epoch: RuntimeError: out of memory"


def test_a_baseline_without_runs_leaves_nothing_to_compare_with(comparison: Maker, tmp_path: Path) -> None:
    found = summarise(read_study(comparison(tmp_path, {"none": [None, "diverged"], "blur": [0.9, 0.91]})))
    baseline, row = found.rows
    assert baseline.scores == {}
    assert (row.difference, row.reach, row.throughput_ratio, row.holm_p) == (None, None, None, None)
    assert row.scores["accuracy"].mean == pytest.approx(0.905)
    assert (found.comparisons, found.seeds) == (0, 0)


def test_tuning_lists_what_was_tried(comparison: Maker, tmp_path: Path) -> None:
    trials = {"dropkey(p=0.1)": {"dropkey(p=0.1)": 0.95, "dropkey(p=0.2)": "diverged", "dropkey(p=0.3)": None}}
    out = comparison(tmp_path, {"none": [0.9], "dropkey(p=0.1)": [0.91]}, trials=trials)
    (tuned,) = summarise(read_study(out)).tuning
    assert tuned.entry.name == "dropkey"
    assert [trial.picked for trial in tuned.trials] == [True, False, False]
    assert [trial.outcome.status for trial in tuned.trials] == ["finished", "diverged", "missing"]
    assert tuned.trials[0].validation["accuracy"] == pytest.approx(0.95)


def test_ablations_are_judged_on_the_validation_part(ablation: Maker, tmp_path: Path) -> None:
    out = ablation(
        tmp_path,
        {"p": [0.1, 0.2], "k": [1, 5]},
        lambda point, seed: None if point == (0.2, 5) else 0.9 + 0.003 * seed + point[0] / 10,
    )
    found = summarise(read_study(out))
    (grid,) = found.grids
    assert [cell.values for cell in grid.cells] == [(0.1, 1), (0.1, 5), (0.2, 1), (0.2, 5)]
    first, last = grid.cells[0], grid.cells[-1]
    assert first.score.mean == pytest.approx(0.913)
    # Differences of 0.010, 0.011 and 0.012.
    assert first.difference.mean == pytest.approx(0.011)
    assert first.difference.interval.low == pytest.approx(0.011 - 4.302653 * 0.001 / 3**0.5)
    assert (last.score, last.difference) == (None, None)
    assert found.grid_baseline.score.mean == pytest.approx(0.902)
    # Three cells have a difference. Holm's correction counts all of them.
    assert grid.cells[2].difference.holm_p == pytest.approx(3 * grid.cells[2].difference.p_value)
    assert first.difference.holm_p == pytest.approx(2 * first.difference.p_value)
    assert len(found.outcomes) == 15


def test_a_study_that_does_not_add_up_is_an_error(tmp_path: Path) -> None:
    write_study(tmp_path, Ablation("c", {}, [0], [Grid("dropkey", {"p": [0.1, 0.2]}, ["dropkey(p=0.1)"])], "none"))
    with pytest.raises(DamagedRecordError, match="ablation 'dropkey': expected 2 methods, found 1"):
        summarise(read_study(tmp_path))


def test_the_bootstrap_on_request(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.90, 0.92, 0.94], "blur": [0.91, 0.94, 0.97]})
    interval = summarise(read_study(out), "bootstrap").rows[1].difference.interval
    assert 0.01 - 1e-9 <= interval.low < interval.high <= 0.03 + 1e-9
    with pytest.raises(ArgumentError, match="interval: expected one of 't', 'bootstrap', received 'normal'"):
        summarise(read_study(out), "normal")
