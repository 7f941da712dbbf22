"""Recipes and records of older versions, in `tests/experiments/older`, can still be read and keep their meaning."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.cli.main import main
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.runs.identity import differences, scored_from
from attentiondrop.experiments.runs.job import standing
from attentiondrop.experiments.runs.kinds import FINAL
from attentiondrop.experiments.runs.store import changed_scores, read_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import COMPARISON, read_study

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
    assert differences(then, scores()) == ["evaluation.pgd_choice first -> stratified"]
    assert scores("evaluation.pgd_epsilons=[]") == scores("evaluation.pgd_epsilons=[]", "evaluation.pgd_choice=first")


def test_stored_weights_give_the_stored_scores(study: Path) -> None:
    run = load_run(study / "runs" / "none" / "seed0")
    assert run.task.name == "classification"
    found = run.task.scores(run.model, run.data, "test", 60, None)
    assert found == pytest.approx(run.record.result.test, rel=1e-4)


def test_an_attack_on_all_images_was_the_same_attack() -> None:
    run = read_run(OLDER / "study" / "runs" / "none" / "seed0")
    now = scored_from(run.request.recipe, run.request.checksums, FINAL)
    now["evaluation"] = now["evaluation"] | {"pgd_choice": "stratified"}
    asked, attacked = now["evaluation"]["pgd_examples"], run.result.robustness.examples
    assert asked == attacked
    assert changed_scores(run, now) == ["evaluation.pgd_choice first -> stratified"]
    for counts, changes in (
        ({"test": attacked}, []),
        ({"test": attacked + 1}, ["evaluation.pgd_choice first -> stratified"]),
    ):
        assert (
            changed_scores(dataclasses.replace(run, result=dataclasses.replace(run.result, counts=counts)), now)
            == changes
        )
    fewer = dataclasses.replace(run.result.robustness, examples=attacked - 1)
    assert changed_scores(dataclasses.replace(run, result=dataclasses.replace(run.result, robustness=fewer)), now) == []


def test_folders_with_numbers_as_they_were_written_are_found(tiny, listener, tmp_path, trained) -> None:
    methods = ["none", "r-drop(weight=1.0,p=0.1)"]
    compare(tiny, methods, 1, tmp_path, listener)
    today, older = (tmp_path / "runs" / name for name in ("r-drop_weight=1.0_p=0.1", "r-drop_weight=1_p=0.1"))
    today.rename(older)
    plan = tmp_path / COMPARISON
    plan.write_text(plan.read_text().replace("weight=1.0", "weight=1"))
    assert summarise(read_study(tmp_path)).rows[1].outcomes[0].status == "finished"
    compare(tiny, methods, 1, tmp_path, listener)
    assert len(trained) == 2 and "2 of 2 runs are finished already" in listener.lines and not today.exists()


def test_a_tail_and_another_part_mean_something_else_now(job, trained) -> None:
    """All parts acted on the last layers."""
    for method, known in (("tailblur+hard", 2), ("tailblur", 3), ("hard", 3)):
        one = job(method)
        execute(one)
        file = one.folder / "run.json"
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"format": 2}))
        found = standing(one, content["checksums"])
        assert (found.todo, found.changes) == (("train", ("format 2 -> 3",)) if known == 2 else ("done", ()))


def test_what_is_refused_today_can_be_read(tiny, listener, tmp_path, trained) -> None:
    compare(tiny, ["none", "longer(lr=1.0,decay=1.0,times=2)"], 1, tmp_path, listener)
    plan = tmp_path / COMPARISON
    plan.write_text(plan.read_text().replace("times=2)", "times=2)+shorter(times=0.5)"))
    content = json.loads(plan.read_text())
    content["recipe"]["training"]["ema"] = 1.0
    plan.write_text(json.dumps(content))
    assert [row.outcomes[0].status for row in summarise(read_study(tmp_path)).rows] == ["of another recipe", "missing"]
