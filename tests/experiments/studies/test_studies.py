"""Comparisons and ablations: which runs are done, which are kept, which settings tuning chooses."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.files.whole_files import DamagedRecordError
from attentiondrop.experiments.report.runs_csv import runs_csv
from attentiondrop.experiments.runs import execute as execution
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.kinds import FINAL, TUNING, VARIED
from attentiondrop.experiments.runs.pool import Where
from attentiondrop.experiments.runs.store import RESULT, Result
from attentiondrop.experiments.studies.ablate import ablate, jobs_of_ablation
from attentiondrop.experiments.studies.compare import _best, compare, jobs_of_comparison
from attentiondrop.experiments.studies.dry_run import plan_of
from attentiondrop.experiments.studies.equal_trials import equal_trials
from attentiondrop.experiments.studies.plan import COMPARISON, read_study
from attentiondrop.experiments.tasks.classification.task import Classification
from attentiondrop.experiments.train.accelerator import device_of

from ..conftest import TINY, scored

METHODS = ["none", "dropout"]
ALL = [("none", 0), ("dropout(p=0.1)", 0), ("none", 1), ("dropout(p=0.1)", 1)]


def test_seeds_are_the_outer_loop_and_finished_runs_are_kept(tiny, listener, tmp_path, trained) -> None:
    compare(tiny, METHODS, 2, tmp_path, listener)
    assert trained == ALL
    assert listener.planned == [8] and listener.done[-1] == 8 and listener.done == sorted(listener.done)
    before = (tmp_path / COMPARISON).read_bytes()
    compare(tiny, METHODS, 2, tmp_path, listener)
    assert trained == ALL and listener.planned[-1] == 0
    assert "4 of 4 runs are finished already" in listener.lines
    assert (tmp_path / COMPARISON).read_bytes() == before
    compare(tiny, [*METHODS, "hard"], 2, tmp_path, listener)
    assert trained[4:] == [("hard(p=0.1,k=5)", 0), ("hard(p=0.1,k=5)", 1)]


def test_methods_whose_trials_are_finished_do_not_wait_for_the_others(tiny, listener, tmp_path, trained) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "training.epochs=1", "tuning.trials=2"])
    compare(recipe, ["dropout"], 1, tmp_path, listener)
    (best,) = [method for method, seed in trained if seed == 0]
    before, asked = len(trained), len(listener.planned)
    found = compare(recipe, ["hard", "dropout"], 2, tmp_path, listener)
    hard = found.methods[0].method
    seed = recipe.tuning.seed
    assert {method for method, _ in trained[before : before + 2]} == set(found.methods[0].trials)
    assert trained[before + 2 :] == [(best, 1), (hard, 0), (hard, 1)] and trained[before][1] == seed
    assert len(listener.planned) - asked == 2  # its runs began together with the trials of the other


def test_a_stopped_method_gets_no_more_runs_and_keeps_its_row(tiny, listener, tmp_path, trained) -> None:
    before = compare(tiny, METHODS, 1, tmp_path, listener)
    stopped = [entry for entry in before.methods if entry.name == "dropout"]
    found = compare(tiny, ["none", "hard"], 2, tmp_path, listener, stopped=stopped)
    assert trained[2:] == [("hard(p=0.1,k=5)", 0), ("none", 1), ("hard(p=0.1,k=5)", 1)]
    assert [entry.name for entry in found.methods] == ["none", "hard", "dropout"]
    assert read_study(tmp_path).comparison == found
    rows = {row.label: row for row in summarise(read_study(tmp_path)).rows}
    assert [row.count("finished") for row in rows.values()] == [2, 2, 1]
    for again in (METHODS, ["none", "dropout(p=0.1)"]):  # by its name, and written in full
        with pytest.raises(AttentionDropError, match=r"stopped: expected other methods .* received \['dropout'\]"):
            compare(tiny, again, 2, tmp_path, listener, stopped=stopped)


def test_changed_settings_are_run_again_on_request_and_said(tiny, listener, tmp_path, trained) -> None:
    compare(tiny, METHODS, 1, tmp_path, listener)
    longer = read_recipe("digits", "demo", [*TINY, "training.epochs=3"])
    compare(longer, METHODS, 1, tmp_path, listener, overwrite=True)
    assert len(trained) == 4
    assert "none, seed 0: run again, since settings changed (training.epochs 2 -> 3)" in listener.lines


def test_an_interruption_loses_nothing_finished(tiny, listener, tmp_path, trained, monkeypatch) -> None:
    whole = execution._train_and_test

    def interrupted(job, *rest):
        if (job.method, job.seed) == ALL[2]:
            raise KeyboardInterrupt
        return whole(job, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(execution, "_train_and_test", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(tiny, METHODS, 2, tmp_path, listener)
    compare(tiny, METHODS, 2, tmp_path, listener)
    assert trained == ALL


def test_every_method_gets_the_same_number_of_trials_and_the_best_setting_is_run(listener, tmp_path, trained) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "tuning.trials=3", "tuning.epochs=1"])
    found = compare(recipe, ["none", "dropout", "hard(k=7)"], 2, tmp_path, listener)
    none, dropout, hard = found.methods
    assert none.method == "none" and none.trials == ["none", "none(lr=0.5,decay=1.0)", "none(lr=2.0,decay=1.0)"]
    assert len(dropout.trials) == len(hard.trials) == 3
    assert all(",k=7" in trial for trial in hard.trials)
    for entry in (dropout, hard):
        assert entry.method == max(entry.trials, key=lambda trial: trial[trial.index("p=") :][2:5])
    assert {seed for _, seed in trained[:9]} == {recipe.tuning.seed}
    assert listener.planned == [9 * 1 + 2 * 3 * 2, 2 * 3 * 2]
    study = read_study(tmp_path)
    assert study.comparison == found
    trial = study.run(dropout.trials[1], recipe.tuning.seed, TUNING)
    assert trial is not None and trial.request.recipe["training"]["epochs"] == 1
    assert study.run(dropout.method, 1, FINAL) is not None
    compare(recipe, ["none", "dropout", "hard(k=7)"], 2, tmp_path, listener)
    assert len(trained) == 15


METRICS = Classification.metrics


def test_a_method_whose_trials_all_diverge_takes_its_first_setting_and_says_so(listener, tmp_path) -> None:
    settings = ["training.epochs=1", "tuning.trials=2", "training.learning_rate=1e25", "data.limit=64"]
    recipe = read_recipe("digits", "demo", [*TINY, *settings])
    (found,) = compare(recipe, ["dropout"], 1, tmp_path, listener).methods
    assert found.method == found.trials[0] == "dropout(p=0.1)"
    assert "dropout: none of 2 trials finished: dropout(p=0.1) is taken" in listener.lines


def test_a_dry_run_of_a_tuned_study_knows_the_settings_that_its_trials_chose(listener, tmp_path, trained) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "tuning.trials=3"])

    def finals() -> list[str]:
        jobs = jobs_of_comparison(recipe, ["dropout", "hard(p=0.1)"], 2, tmp_path, Where())
        assert [job.part for job in jobs["dropout, tuning"]] == [TUNING] * 3
        return [job.method for job in jobs["dropout"]]

    assert finals() == ["dropout(p=0.1)"] * 2  # nothing is known yet
    compare(recipe, ["dropout", "hard(p=0.1)"], 2, tmp_path, listener)
    assert finals() == ["dropout(p=0.2)"] * 2
    (run_folder(tmp_path, "dropout(p=0.05)", recipe.tuning.seed, TUNING) / RESULT).unlink()
    assert finals() == ["dropout(p=0.1)"] * 2


def test_trials_that_are_one_training_are_said(listener, tmp_path, trained) -> None:
    """Without weight decay, its factor changes nothing. Parts beside it, and other factors, do."""
    changes = ["training.weight_decay=0", "tuning.trials=6", "training.epochs=1"]
    recipe = read_recipe("digits", "demo", [*TINY, *changes])
    said = "tuning: none has 3 different settings in 6 trials, since training.weight_decay is 0; give others as tuning.grids"
    compare(recipe, ["none", "dropout"], 1, tmp_path / "one", listener)
    assert [line for line in listener.lines if "different" in line] == [said]
    assert said in plan_of(jobs_of_comparison(recipe, ["none", "dropout"], 1, tmp_path / "one", Where())).data
    joined = {"longer+dropout": ["longer(times=2)+dropout(p=0.1)", "longer(decay=5.0,times=2)+dropout(p=0.2)"]}
    assert equal_trials(recipe.training, joined) == []
    same = {"longer+hard": ["longer(times=2)+hard", "longer(decay=5.0,times=2)+hard", "longer(times=3)+hard"]}
    (line,) = equal_trials(recipe.training, same)
    assert line.startswith("tuning: longer+hard has 2 different settings in 3 trials, since")
    assert equal_trials(read_recipe("digits", "demo", TINY).training, same) == []
    (line,) = equal_trials(read_recipe("digits", "demo", TINY).training, {"hard": ["hard", "hard(p=0.1,k=5)"]})
    assert line == "tuning: hard has 1 different setting in 2 trials; give others as tuning.grids"
    assert equal_trials(recipe.training, {"hard": ["hard(p=0.1)", "hard(p=0.2)"]}) == []
    assert equal_trials(recipe.training, {"hard": ["hard", "hard(p=0.1,k=5)"]}) == [line]  # the decay is not the reason
    (line,) = equal_trials(recipe.training, {"none": ["none", "none", "none(lr=1.0,decay=5.0)"]})
    assert "since training.weight_decay is 0" in line  # for one of the two


def test_equal_trials_are_told_apart_by_likelihood_and_failed_ones_do_not_win() -> None:
    def result(accuracy: float, nll: float) -> Result:
        # As older versions stored it, with test scores that would give the opposite choice.
        test = scored(1 - accuracy, 2 - nll, 0.0, 0.0)
        return Result("finished", 1.0, 1, validation=scored(accuracy, nll, 0.0, 0.0), test=test)

    failed = Result("failed", 1.0, 0, error="x")
    assert _best(METRICS, {"a": failed, "b": result(0.5, 1.0), "c": result(0.5, 0.9), "d": result(0.4, 0.1)}) == "c"
    assert _best(METRICS, {"a": failed, "b": failed}) == "a"


def test_an_ablation_runs_its_grid_and_the_baseline(tiny, listener, tmp_path, trained) -> None:
    grids = {"hard": {"p": [0.1, 0.2], "k": [1, 3]}, "blur+dropout": {"sigma_max": [0.5]}}
    found = ablate(tiny, grids, 1, tmp_path, listener)
    assert found.grids[0].methods == ["hard(p=0.1,k=1)", "hard(p=0.1,k=3)", "hard(p=0.2,k=1)", "hard(p=0.2,k=3)"]
    assert found.grids[1].methods == ["dropout(p=0.1)+blur(sigma_max=0.5)"]
    assert [method for method, _ in trained] == ["none", *found.grids[0].methods, *found.grids[1].methods]
    assert read_study(tmp_path).ablation == found
    assert not list(tmp_path.rglob("*.safetensors"))
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {VARIED}
    # Runs of an ablation are not tested, so a comparison cannot reuse them and trains its own.
    compare(tiny, ["none", "hard(p=0.2,k=3)"], 1, tmp_path, listener)
    assert trained[6:] == [("none", 0), ("hard(p=0.2,k=3)", 0)]
    study = read_study(tmp_path)
    assert study.comparison is not None and study.ablation is not None


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ({"hard": {"p": [0.1], "k": [3], "fill": ["zero"]}}, "expected one or two fields to vary, received 3"),
        ({"hard": [{"p": 0.1}, {"p": 0.2}]}, "ablation of hard: expected fields with their values, such as p"),
        ({"hard(p=0.1)": {"p": [0.1]}}, "p is varied, leave it out of the method"),
        ({"hard": {"p": [2.0]}}, "p: expected a number in [0, 1]"),
        ({"hrad": {"p": [0.1]}}, "unknown method 'hrad'"),
    ],
)
def test_a_wrong_ablation_is_refused(tiny, listener, tmp_path, grids, message: str) -> None:
    with pytest.raises(AttentionDropError) as caught:
        ablate(tiny, grids, 1, tmp_path, listener)
    assert message in str(caught.value)


def test_without_a_grid_the_recipe_says_what_is_varied(tiny, listener, tmp_path, trained) -> None:
    found = ablate(tiny, {}, 1, tmp_path, listener)
    assert {grid.name: grid.axes for grid in found.grids} == tiny.ablations


def test_without_any_grid_the_ablation_is_that_of_the_paper(tiny, tmp_path) -> None:
    jobs = jobs_of_ablation(dataclasses.replace(tiny, ablations={}), {}, 2, tmp_path, Where())
    hard = [f"hard(p={p},k={k})" for p in (0.05, 0.1, 0.2) for k in (3, 5, 10)]
    assert list(jobs) == ["none", *hard, *(f"blur(sigma_max={sigma})" for sigma in (0.1, 0.3, 0.5, 0.7, 1.0))]
    assert all([job.seed for job in each] == [0, 1] for each in jobs.values())


def test_an_ablation_and_its_dry_run_count_the_same_work(tiny, listener, tmp_path, trained, monkeypatch) -> None:
    counted: list[tuple[int, int]] = []
    studied = importlib.import_module("attentiondrop.experiments.studies.ablate")
    monkeypatch.setattr(studied, "with_workers", lambda where, recipe, *work: (counted.append(work), where)[1])
    grids = {"hard": {"p": [0.1, 0.2]}}
    # Three methods, two seeds, two epochs.
    jobs_of_ablation(tiny, grids, 2, tmp_path, Where())
    ablate(tiny, grids, 2, tmp_path, listener)
    assert counted == [(6, 12), (6, 12)]


def test_an_ablation_records_its_device(listener, tmp_path, trained) -> None:
    """A run on another device counts as another run, so `auto` is not what is recorded."""
    recipe = read_recipe("digits", "demo", [*TINY, "training.device=auto"])
    found = ablate(recipe, {"hard": {"p": [0.1]}}, 1, tmp_path, listener)
    assert found.recipe["training"]["device"] == device_of(recipe.training) != "auto"


def test_studies_are_refused_inside_torchrun(tiny, listener, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(AttentionDropError, match="compare starts its runs itself"):
        compare(tiny, METHODS, 1, tmp_path, listener)


def test_folders_that_hold_no_study(tmp_path: Path, tiny, listener, trained) -> None:
    with pytest.raises(AttentionDropError, match="expected the folder of `attentiondrop compare` or `ablate`"):
        read_study(tmp_path)
    compare(tiny, METHODS, 1, tmp_path, listener)
    content = json.loads((tmp_path / COMPARISON).read_text())
    del content["seeds"]
    (tmp_path / COMPARISON).write_text(json.dumps(content))
    with pytest.raises(DamagedRecordError, match=r"comparison\.json cannot be read: .*seeds"):
        read_study(tmp_path)
    assert run_folder(tmp_path, "hard", 3) == tmp_path / "runs" / "hard_p=0.1_k=5" / "seed3"
    assert (run_folder(tmp_path, "none", 0) / RESULT).exists()


def test_fresh_seeds_are_other_runs_of_the_same_recipe(tiny, listener, tmp_path, trained) -> None:
    compare(tiny, METHODS, 2, tmp_path, listener)
    fresh = read_recipe("digits", "demo", [*TINY, "first_seed=100"])
    found = compare(fresh, METHODS, 2, tmp_path, listener)
    assert found.seeds == [100, 101]
    assert trained[4:] == [(method, seed + 100) for method, seed in ALL]
    assert ablate(fresh, {"hard": {"p": [0.1]}}, 2, tmp_path, listener).seeds == [100, 101]


def test_the_seed_of_tuning_is_no_seed_of_a_final_run() -> None:
    with pytest.raises(AttentionDropError, match=r"tuning.seed: expected a seed that no final run uses, received 1000"):
        read_recipe("digits", "demo", [*TINY, "first_seed=999", "tuning.trials=1"])


def test_seeds_with_splits_of_their_own_share_a_folder(listener, tmp_path) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "data.resplit=true", "training.epochs=1"])
    compare(recipe, ["none"], 2, tmp_path, listener)
    runs = [read_study(tmp_path).run("none", seed) for seed in (0, 1)]
    assert runs[0].request.checksums == runs[1].request.checksums
    assert runs[0].result.validation != runs[1].result.validation
    drawn = [run.result.drawn_checksum for run in runs]
    assert None not in drawn and drawn[0] != drawn[1]
    rows = list(csv.DictReader(io.StringIO(runs_csv(summarise(read_study(tmp_path))))))
    assert [row["checksum_drawn"] for row in rows] == drawn
    # The validation part decides the temperature, so it has no error after scaling, and no column for one.
    assert "validation_ece" in rows[0] and "validation_ece_scaled" not in rows[0]
    assert all(row["test_ece_scaled"] for row in rows)
    compare(recipe, ["none"], 2, tmp_path, listener)
    assert listener.planned[-1] == 0
    # A finished run is loaded with the images of its own seed.
    loaded = load_run(run_folder(tmp_path, "none", 1))
    assert Classification().scores(loaded.model, loaded.data, "validation", 64, None) == runs[1].result.validation
    other = read_recipe("digits", "demo", [*TINY, "training.epochs=1"])
    with pytest.raises(AttentionDropError, match=r"data\.resplit"):
        compare(other, ["none"], 2, tmp_path, listener)


@pytest.mark.parametrize("study", [compare, ablate])
def test_a_study_reads_files_that_have_changed(listener, tmp_path, trained, study) -> None:
    """In a notebook, the same process does several studies."""
    recipe = read_recipe("digits", "demo", [*TINY, "data.name=npz", f"data.root={tmp_path / 'own.npz'}"])
    found = []
    for value in (0, 1):
        x, y = np.full((40, 8, 8, 3), value, np.uint8), np.arange(40) % 2
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        methods = ["none"] if study is compare else {"dropout": {"p": [0.1]}}
        found.append(study(recipe, methods, 1, tmp_path / str(value), listener).checksums)
    assert len({each["train"] for each in found}) == 2
