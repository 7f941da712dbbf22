"""The paragraphs at the top of a report say no more than its tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.analysis.summary import Summary
from attentiondrop.experiments.report.palette import looks
from attentiondrop.experiments.report.training import _convergence, _panel
from attentiondrop.experiments.report.words import facts, heading, paragraphs
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.studies.plan import read_study

from ..conftest import write_epochs
from .pages import Maker, written

BASE = [0.90, 0.91, 0.90, 0.92, 0.91]


def read(folder: Path) -> Summary:
    return summarise(read_study(folder))


def moved(by: float) -> list[float]:
    return [score + by + 0.001 * (seed % 2) for seed, score in enumerate(BASE)]


def test_what_remains_after_correction_has_its_corrected_interval(comparison: Maker, tmp_path: Path) -> None:
    wide = [0.93, 0.91, 0.89, 0.95, 0.90]
    summary = read(comparison(tmp_path, {"none": BASE, "hard": moved(0.05), "blur": wide}))
    found = summary.rows[1].difference
    assert found is not None and found.marked and found.holm_interval is not None
    after = found.times(100).holm_interval
    assert after is not None and found.holm_interval != found.interval
    assert f"{after.low:+.2f} to {after.high:+.2f})" in paragraphs(summary)[1]


def test_many_methods_are_counted_and_the_farthest_are_named(comparison: Maker, tmp_path: Path) -> None:
    ends = {"none": BASE} | {f"dropkey(p=0.0{index})": moved(0.01 * index) for index in range(1, 7)}
    named = paragraphs(read(comparison(tmp_path / "six", ends)))[1]
    assert all(f"`{method}` is above the baseline" in named for method in list(ends)[1:])
    text = paragraphs(read(comparison(tmp_path / "seven", ends | {"blur": moved(-0.3)})))[1]
    assert "6 methods are above the baseline (most: `dropkey(p=0.06)`, +6.04, " in text
    assert "); `blur` is below the baseline (-29.96, " in text and "dropkey(p=0.01)" not in text


def test_runs_with_more_epochs_than_the_recipe_are_said(comparison: Maker, tmp_path: Path) -> None:
    folder = comparison(tmp_path, {"none": BASE, "longer": moved(0.01)})
    assert "were compared on `digits` with the model `vit_digits`, 12 epochs each. " in paragraphs(read(folder))[0]
    assert dict(facts(read(folder)))["epochs"] == "12"
    for seed in range(len(BASE)):
        file = run_folder(folder, "longer", seed) / "result.json"
        write_epochs(file.parent, 24, first=13)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"epochs": 24}))
    assert "12 to 24 epochs each" in paragraphs(read(folder))[0]
    assert dict(facts(read(folder)))["epochs"] == "12 to 24"


def test_runs_that_are_not_there_yet_are_said(comparison: Maker, tmp_path: Path) -> None:
    ends = {"none": BASE, "hard": [*moved(0.01)[:3], None, "unfinished"], "blur": [*BASE[:4], "failed"]}
    summary = read(comparison(tmp_path / "some", ends))
    assert dict(facts(summary))["runs finished"] == "12 of 15"
    text = paragraphs(summary)[2]
    assert "1 run diverged or failed" in text and "2 runs of the study did not finish yet" in text
    assert "did not finish yet" not in paragraphs(read(comparison(tmp_path / "all", {"none": BASE})))[2]


def test_five_seeds_are_enough_and_four_are_few(comparison: Maker, tmp_path: Path) -> None:
    for seeds, few in ((5, False), (4, True)):
        ends = {"none": BASE[:seeds], "hard": moved(0.01)[:seeds]}
        assert ("little can be said" in paragraphs(read(comparison(tmp_path / str(seeds), ends)))[2]) == few


@pytest.mark.parametrize(
    "tried, said",
    [
        ((0, 0), "No method was tuned: settings are as they were given."),
        ((2, 2), "Tuning tried 2 settings a method on the validation part."),
        ((1, 1), "Tuning tried 1 setting a method on the validation part."),
        (
            (0, 2),
            "Tuning tried between 0 and 2 settings a method on the validation part; the rest of the recipe is the",
        ),
    ],
)
def test_how_many_settings_were_tried_is_said(
    comparison: Maker, tmp_path: Path, tried: tuple[int, int], said: str
) -> None:
    methods = ("dropkey(p=0.1)", "hard(p=0.1,k=5)")
    trials = {
        method: {method.replace("0.1", f"0.{1 + index}"): 0.9 for index in range(count)}
        for method, count in zip(methods, tried, strict=True)
    }
    assert said in paragraphs(read(comparison(tmp_path, dict.fromkeys(methods, BASE), trials=trials)))[0]


def test_a_baseline_without_a_finished_run_is_said(comparison: Maker, tmp_path: Path) -> None:
    text = paragraphs(read(comparison(tmp_path, {"none": ["failed"] * 5, "hard": BASE})))[1]
    assert text == "The baseline `none` has no finished run yet, so there is nothing to compare with."


def test_the_title_is_the_recipe(comparison: Maker, tmp_path: Path) -> None:
    summary = read(comparison(tmp_path, {"none": BASE[:1]}))
    assert heading(summary) == "digits demo: comparison"
    summary.plan.recipe.update(name=None, size=None)
    assert heading(summary) == "Study: comparison"


def test_many_dates_are_a_range(comparison: Maker, tmp_path: Path) -> None:
    folder = comparison(tmp_path, {"none": BASE[:3]})
    for seed, minute in enumerate((7, 3, 5)):
        file = run_folder(folder, "none", seed) / "run.json"
        request = json.loads(file.read_text())
        request["environment"]["date"] = f"2026-01-01 10:0{minute} UTC"
        file.write_text(json.dumps(request))
    assert written(folder)[0].table("Recorded with")["date"] == ["2026-01-01 10:03 UTC to 2026-01-01 10:07 UTC"]


def test_the_best_value_so_far_has_few_markers(comparison: Maker, tmp_path: Path) -> None:
    """Runs that validate seldom have it at every epoch: a marker at each of them hides the lines."""
    summary = read(comparison(tmp_path, {"none": BASE}))
    panel = dataclasses.replace(_convergence(summary.metrics.each_epoch, 0.8), sparse=True)
    drawn = _panel(panel, summary.rows, looks(["none"]))
    assert drawn is not None and drawn.count('class="marker"') == 7  # of 12 epochs: every second, and the last
