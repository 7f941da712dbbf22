"""A report contains only runs of its recipe, and says which runs it left out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.runs.kinds import VARIED
from attentiondrop.experiments.studies.plan import Ablation, Comparison, Grid, read_study, write_study

from .conftest import recipe, write_run
from .pages import Maker, written


def test_runs_of_another_recipe_are_left_out_and_said(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.9, 0.91], "blur": [0.95, 0.96]})
    study = read_study(out).comparison
    settings = study.recipe | {"training": study.recipe["training"] | {"epochs": 30}}
    write_study(out, Comparison(study.command, settings, [0, 1], 0, study.methods))
    write_run(out, "none", 0, 0.8, settings=settings)
    page, markdown, rows = written(out)
    assert "30 epochs each" in markdown and page.table("Test accuracy, mean")["blur"][:2] == ["0 of 2", "\u2013"]
    assert page.table("Test accuracy of every run") == {
        "Method": ["0", "1"],
        "none": ["80.00", "of another recipe"],
        "blur": ["of another recipe", "of another recipe"],
    }
    line = "Left out: 3 runs of another recipe (recorded -&gt; here: training.epochs 12 -&gt; 30), in"
    assert f"{line} runs/blur_sigma_max=0.5/seed0 and 2 more." in markdown
    assert [row["status"] for row in rows] == ["finished", *["of another recipe"] * 3]
    assert [row["test_accuracy"] for row in rows] == ["0.8", "", "", ""]
    assert rows[2]["detail"] == "the run in the folder is of another recipe: training.epochs 12 -> 30"


def test_runs_with_other_scores_or_that_nobody_asked_for_are_left_out_and_said(
    comparison: Maker, tmp_path: Path
) -> None:
    out = comparison(tmp_path, {"none": [0.9, 0.91], "blur": [0.95, 0.96]})
    study = read_study(out).comparison
    settings = study.recipe | {"evaluation": {"attack": "other"}}
    write_study(out, Comparison(study.command, settings, [0, 1], 0, study.methods[:1]))
    write_run(out, "none", 1, 0.8, settings=settings)
    page, markdown, _ = written(out)
    assert page.table("Test accuracy of every run")["none"] == ["of another recipe", "80.00"]
    assert "Left out: 3 runs of another recipe (recorded -&gt; here: evaluation.attack pgd -&gt; other), in" in markdown
    write_run(out, "blur", 0, 0.8, settings=settings)
    assert "Left out: 1 run of this recipe that the study does not ask for, in runs/blur" in written(out)[1]


def test_a_run_that_is_left_out_is_compared_with_the_recipe_of_its_kind(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.9]})
    shorter = recipe(training=recipe()["training"] | {"epochs": 3})
    grids = [Grid("dropkey", {"p": [0.3]}, ["dropkey(p=0.3)"])]
    write_study(out, Ablation("c", shorter, [0], grids, "none", part=VARIED))
    write_run(out, "dropkey(p=0.4)", 0, 0.9)
    write_run(out, "dropkey(p=0.4)", 0, 0.9, VARIED, settings=shorter)
    write_run(out, "dropkey(p=0.4)", 1, 0.9, VARIED)
    write_run(out, "dropkey(p=0.4)", 2, "damaged", VARIED, settings=shorter)
    found = {each.place: each.changes for each in summarise(read_study(out)).left_out}
    assert found == {
        "runs/dropkey_p=0.4/seed0": (),
        f"{VARIED}/dropkey_p=0.4/seed0": (),
        f"{VARIED}/dropkey_p=0.4/seed1": ("training.epochs 12 -> 3",),
        f"{VARIED}/dropkey_p=0.4/seed2": ("it cannot be read",),
    }


def test_runs_of_other_versions_are_said(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.9, 0.91], "blur": [0.95, 0.96]})
    assert "different versions" not in written(out)[1]
    request = out / "runs" / "none" / "seed1" / "run.json"
    request.write_text(request.read_text().replace("2.15.0", "2.10.0"))
    (line,) = [each for each in written(out)[1].splitlines() if "different versions" in each]
    ours = "attentiondrop 0.6.0 (commit abc1234)"
    assert line == (
        "- The runs were made with different versions, which may change numbers: "
        f"torch 2.15.0, {ours} (3 runs); torch 2.10.0, {ours} (1 run)."
    )


def test_an_ablation_of_another_recipe_than_the_comparison_is_said(full_study: Path) -> None:
    study = read_study(full_study)
    settings = study.comparison.recipe | {"training": study.comparison.recipe["training"] | {"epochs": 3}}
    write_study(full_study, dataclasses.replace(study.ablation, recipe=settings))
    _, markdown, _ = written(full_study)
    assert "The ablation was made with another recipe than the comparison (training.epochs 12 -&gt; 3)" in markdown


def test_what_older_versions_recorded_of_the_test_part_is_not_shown_of_runs_that_choose(
    comparison: Maker, tmp_path: Path
) -> None:
    """Older versions also tested trials, and kept ablations among the final runs."""
    trials = {"dropkey(p=0.1)": {"dropkey(p=0.1)": 0.95, "dropkey(p=0.2)": 0.94}}
    out = comparison(tmp_path, {"none": [0.9], "dropkey(p=0.1)": [0.91]}, trials=trials)
    trial = out / "tuning" / "dropkey_p=0.2" / "seed1000"
    final = json.loads((out / "runs" / "none" / "seed0" / "result.json").read_text())
    stored = json.loads((trial / "result.json").read_text())
    for name in ("test", "reliability", "robustness"):
        stored[name] = final[name]
    (trial / "result.json").write_text(json.dumps(stored))
    write_run(out, "dropkey(p=0.3)", 0, 0.777)
    grids = [Grid("dropkey", {"p": [0.3]}, ["dropkey(p=0.3)"])]
    write_study(out, Ablation("c", recipe(), [0], grids, "none"))
    _, _, rows = written(out)
    assert {(row["method"], row["part"]): row["test_accuracy"] for row in rows} == {
        ("none", "runs"): "0.9",
        ("dropkey(p=0.1)", "runs"): "0.91",
        ("dropkey(p=0.1)", "tuning"): "",
        ("dropkey(p=0.2)", "tuning"): "",
        ("dropkey(p=0.3)", "runs"): "",
    }
    assert all(row["validation_accuracy"] for row in rows)


def test_runs_on_other_data_are_pointed_out(comparison: Maker, tmp_path: Path) -> None:
    out = comparison(tmp_path, {"none": [0.9, 0.91]})
    request = out / "runs" / "none" / "seed1" / "run.json"
    request.write_text(request.read_text().replace("2b" * 32, "3c" * 32))
    page, markdown, _ = written(out)
    assert "The runs were made on different data: their checksums differ." in markdown
    (value,) = page.table("Recorded with 2 runs")["test data, SHA-256"]
    assert value == f"{'2b' * 32} (1 run); {'3c' * 32} (1 run)"
