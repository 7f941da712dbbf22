"""Recipes and records of older versions, in `tests/experiments/older`, can still be read and keep their meaning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.cli.main import main
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.runs.identity import differences, scored_from
from attentiondrop.experiments.runs.kinds import FINAL
from attentiondrop.experiments.runs.store import read_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import read_study

OLDER = Path(__file__).parents[1] / "older"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER / "study", tmp_path / "study"))


def test_every_record_is_read_as_it_was_written(study: Path) -> None:
    folders = [path.parent for path in study.glob("*/*/*/run.json")]
    assert len(folders) == 10
    for folder in folders:
        run, result = read_run(folder), json.loads((folder / "result.json").read_text())
        for part in ("validation", "test"):
            kept = result[part] and {name: value for name, value in result[part].items() if value is not None}
            assert getattr(run.result, part) == kept
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for epoch, line in zip(run.epochs, lines, strict=True):
            assert epoch.validation == {"accuracy": line["validation_accuracy"], "nll": line["validation_nll"]}
            assert epoch.train_loss == line["train_loss"]


def test_its_numbers_are_those_of_the_table_then(study: Path) -> None:
    none, hard, blur = summarise(read_study(study)).rows
    assert none.scores["accuracy"].times(100).text(1) == "11.7 ± 4.7"
    assert hard.difference.times(100).text(1) == "+0.8 [-9.8, +11.4]"
    assert blur.scores["nll"].text(3) == "2.592 ± 0.054" and blur.scores["ece"].times(100).text(1) == "15.0 ± 1.1"
    assert none.robust and none.outcomes[0].result.reliability is not None


def test_the_same_command_finds_everything_done(study: Path, listener, capsys) -> None:
    # Older versions drew other points of grids, and did not tune `none`. Its fields are given here, so it is not tuned.
    # They also attacked the first test images.
    grids = "{hard: [{}, {p: 0.05, k: 10}], blur: {sigma_max: [1.0]}, consistency: {weight: [1.0]}}"
    changes = ["training.device=cpu", "tuning.points=2", f"tuning.grids={grids}", "evaluation.pgd_choice=first"]
    recipe = read_recipe(str(OLDER / "recipe.yaml"), changes=changes)
    compare(recipe, ["none(lr=1.0,decay=1.0)", "hard", "blur+consistency"], recipe.seeds, study, listener)
    assert "10 of 10 runs are finished already" in listener.lines  # four trials and six final runs
    assert main(["report", str(study)]) == 0
    assert (study / "report.html").stat().st_size > 10_000


def test_attacks_on_the_first_images_are_other_attacks() -> None:
    """Where nothing is attacked, the choice of images does not matter."""

    def scores(*changes: str) -> dict[str, Any]:
        return scored_from(read_recipe(str(OLDER / "recipe.yaml"), changes=changes).to_dict(), {}, FINAL)

    then = scores("evaluation.pgd_choice=first")
    assert "pgd_choice" not in then["evaluation"]
    assert differences(then, scores()) == ["evaluation.pgd_choice None -> stratified"]
    assert scores("evaluation.pgd_epsilons=[]") == scores("evaluation.pgd_epsilons=[]", "evaluation.pgd_choice=first")


def test_stored_weights_give_the_stored_scores(study: Path) -> None:
    run = load_run(study / "runs" / "none" / "seed0")
    assert run.task.name == "classification"
    found = run.task.scores(run.model, run.data, "test", 60, None)
    assert found == pytest.approx(run.record.result.test, rel=1e-4)
