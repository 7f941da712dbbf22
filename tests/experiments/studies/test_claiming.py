"""A folder belongs to one recipe: no finished run is lost by mistake, and no report mixes recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from attentiondrop.cli.main import main
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs import execute as execution
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.job import LOCK, WouldEraseError
from attentiondrop.experiments.runs.kinds import TUNING
from attentiondrop.experiments.runs.store import REQUEST, RESULT, TRACEBACK, Result, read_run
from attentiondrop.experiments.studies.ablate import ablate
from attentiondrop.experiments.studies.claiming import claim
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import COMPARISON, read_study
from attentiondrop.experiments.tasks.classification.task import Classification
from attentiondrop.experiments.train.epoch_log import BEST, LAST, STATE

from ..conftest import TINY

METHODS = ["none", "dropout"]


@pytest.fixture
def longer():
    return read_recipe("digits", "demo", [*TINY, "training.epochs=3"])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class TestStudies:
    def test_another_recipe_is_refused_in_one_line_and_nothing_is_touched(
        self, tiny, longer, listener, tmp_path, trained
    ) -> None:
        compare(tiny, METHODS, 2, tmp_path, listener)
        before = files(tmp_path)
        with pytest.raises(WouldEraseError) as caught:
            compare(longer, METHODS, 2, tmp_path, listener)
        assert str(caught.value) == (
            f"{tmp_path}: made with another recipe (training.epochs 2 -> 3), 4 finished runs would be erased; "
            "use another --out, or --overwrite to train anew"
        )
        with pytest.raises(WouldEraseError, match="4 finished runs would be erased"):
            compare(longer, ["hard", "blur"], 1, tmp_path, listener)
        with pytest.raises(WouldEraseError, match="4 finished runs would be erased"):
            ablate(longer, {"hard": {"p": [0.1]}}, 1, tmp_path, listener)
        assert files(tmp_path) == before and len(trained) == 4

    def test_of_many_changes_the_error_names_a_few(self, job, trained) -> None:
        execute(job())
        changes = [
            "epochs=3",
            "learning_rate=0.1",
            "weight_decay=0.2",
            "warmup=0.3",
            "label_smoothing=0.4",
            "batch_size=8",
        ]
        with pytest.raises(WouldEraseError) as caught:
            execute(job("none", 0, *(f"training.{change}" for change in changes)))
        assert str(caught.value).count(" -> ") == 4 and "; and 2 more), 1 finished run would" in str(caught.value)

    def test_a_diverged_run_counts_as_finished(self, tiny, listener, tmp_path, monkeypatch) -> None:
        runs: list[str] = []

        def diverges(job, *_) -> Result:
            runs.append(job.method)
            return Result("diverged", 1.0, 1, error="the loss stopped being a number")

        monkeypatch.setattr(execution, "_train_and_test", diverges)
        for _ in range(2):
            compare(tiny, METHODS, 1, tmp_path, listener)
        assert len(runs) == 2 and listener.lines[-1] == "2 of 2 runs are finished already"

    def test_the_same_recipe_is_not_another_one(self, tiny, listener, tmp_path, trained) -> None:
        compare(tiny, METHODS, 1, tmp_path, listener)
        elsewhere = read_recipe("digits", "demo", [*TINY, "data.root=elsewhere", "data.workers=3", "seeds=7"])
        compare(elsewhere, [*METHODS, "hard"], 1, tmp_path, listener)
        ablate(elsewhere, {"hard": {"p": [0.1]}}, 1, tmp_path, listener)
        assert len(trained) == 5

    def test_a_run_made_by_train_is_not_erased_either(self, job, longer, listener, tmp_path, trained) -> None:
        execute(job())
        with pytest.raises(WouldEraseError, match=r"none, seed 0 in .*1 finished run would be erased"):
            compare(longer, METHODS, 1, tmp_path, listener)
        assert not (tmp_path / COMPARISON).exists()

    def test_a_recipe_that_another_process_works_with_is_refused(
        self, tiny, longer, listener, tmp_path, trained
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execution, "_train_and_test", interrupted)
            with pytest.raises(KeyboardInterrupt):
                compare(tiny, METHODS, 1, tmp_path, listener)
        with (
            FileLock(run_folder(tmp_path, "none", 0) / LOCK),
            pytest.raises(WouldEraseError, match="another process works there with another recipe"),
        ):
            compare(longer, METHODS, 1, tmp_path, listener)
        # No run is finished and no process works there, so nothing is lost.
        compare(longer, METHODS, 1, tmp_path, listener)
        assert len(trained) == 2

    def test_another_process_with_the_same_recipe_shares_the_folder(self, tiny, listener, tmp_path, trained) -> None:
        found = compare(tiny, METHODS, 1, tmp_path, listener)
        with FileLock(run_folder(tmp_path, "none", 0) / LOCK):
            claim(tmp_path, found, [])

    def test_the_folder_is_made_with_those_above_it(self, tiny, listener, tmp_path, trained) -> None:
        out = tmp_path / "studies" / "first"
        compare(tiny, METHODS, 1, out, listener)
        assert read_study(out).comparison.seeds == [0]

    def test_a_folder_that_was_taken_meanwhile_is_left_to_its_new_study(
        self, tiny, longer, listener, tmp_path, trained, monkeypatch
    ) -> None:
        instant = execution._train_and_test

        def interfered(job, *rest):
            if not trained:
                trained.append(("the other command begins", 0))
                monkeypatch.setattr(execution, "_train_and_test", instant)
                compare(longer, ["hard"], 1, tmp_path, listener, overwrite=True)
            return instant(job, *rest)

        monkeypatch.setattr(execution, "_train_and_test", interfered)
        with pytest.raises(Exception, match="another command has begun a study with another recipe there"):
            compare(tiny, ["none"], 1, tmp_path, listener)
        assert read_study(tmp_path).comparison.recipe["training"]["epochs"] == 3


def test_a_report_after_an_interrupted_change_of_recipe_is_of_the_new_one_alone(
    tmp_path, capsys, monkeypatch, trained
) -> None:
    """Three epochs, then eight, stopped after the first run; then a report."""
    methods = ["none", "dropout", "hard", "blur"]
    command = ["compare", "--methods", *methods, "--seeds", "1", "--out", str(tmp_path), "--set", *TINY]
    assert main([*command, "training.epochs=3"]) == 0
    capsys.readouterr()
    assert main([*command, "training.epochs=8"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"attentiondrop compare: {tmp_path}: made with another recipe (training.epochs 3 -> 8), 4 finished runs would "
        "be erased; use another --out, or --overwrite to train anew"
    )
    instant = execution._train_and_test

    def stop_after_one(job, *rest):
        if len(trained) == 5:
            raise KeyboardInterrupt
        return instant(job, *rest)

    monkeypatch.setattr(execution, "_train_and_test", stop_after_one)
    assert main([*command, "training.epochs=8", "--overwrite"]) == 130
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 0
    # Old runs stay until they are trained again: two are left, since one new run has finished and one has begun.
    left = "2 runs of another recipe (recorded -> here: training.epochs 3 -> 8), in runs/blur_sigma_max=0.5/seed0 and 1"
    assert f"Left out: {left} more." in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text()
    assert "8 epochs each" in text and "| `none` | 1 of 1 |" in text
    for method in ("dropout(p=0.1)", "hard(p=0.1,k=5)", "blur(sigma_max=0.5)"):
        assert f"| `{method}` | 0 of 1 |" in text


def test_the_report_command_says_what_it_left_out(tiny, longer, listener, tmp_path, trained, capsys) -> None:
    compare(tiny, METHODS, 1, tmp_path, listener)
    compare(longer, METHODS[:1], 1, tmp_path, listener, overwrite=True)
    assert main(["report", str(tmp_path)]) == 0
    line = "Left out: 1 run of another recipe (recorded -> here: training.epochs 2 -> 3), in runs/dropout_p=0.1/seed0."
    assert line in capsys.readouterr().out.splitlines()
    text = (tmp_path / "report.md").read_text()
    assert "Left out: 1 run of another recipe" in text and "| `dropout(p=0.1)`" not in text


def test_the_report_of_an_ablation_says_that_it_left_out_a_run_of_train(job, tiny, listener, tmp_path, trained, capsys):
    execute(job("dropout(p=0.1)"))
    ablate(tiny, {"hard": {"p": [0.1]}}, 1, tmp_path, listener)
    assert main(["report", str(tmp_path)]) == 0
    line = "Left out: 1 run of this recipe that the study does not ask for, in runs/dropout_p=0.1/seed0."
    assert line in capsys.readouterr().out.splitlines()


class TestEvaluation:
    @pytest.fixture
    def trainings(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        found: list[str] = []
        real = execution._train_and_test

        def noted(job, *rest):
            found.append(job.label)
            return real(job, *rest)

        monkeypatch.setattr(execution, "_train_and_test", noted)
        return found

    def test_a_change_of_evaluation_scores_again_and_keeps_weights_and_curves(self, job, trainings) -> None:
        first = execute(job())
        weights = {name: (job().folder / name).read_bytes() for name in (BEST, LAST, REQUEST)}
        attack = ["evaluation.pgd_epsilons=[0.03]", "evaluation.pgd_steps=1", "evaluation.pgd_examples=4"]
        again = execute(job("none", 0, "evaluation.batch_size=24", *attack))
        assert trainings == ["none, seed 0"]
        assert again.test["accuracy"] == first.test["accuracy"] and again.best_epoch == first.best_epoch
        assert again.test["nll"] == pytest.approx(first.test["nll"], rel=1e-5)
        assert (again.seconds, again.throughput, again.epochs) == (first.seconds, first.throughput, first.epochs)
        assert first.robustness is None and again.robustness.epsilons == [0.0, 0.03]
        assert {name: (job().folder / name).read_bytes() for name in weights} == weights
        assert read_run(job().folder).result == again
        # Now it is done. With the old setting it is scored once more.
        assert execute(job("none", 0, "evaluation.batch_size=24", *attack)) == again
        back = execute(job())
        assert (back.test, back.robustness) == (first.test, None)
        assert trainings == ["none, seed 0"]

    def test_which_weights_are_tested_is_a_matter_of_evaluation(self, job, trainings) -> None:
        best = execute(job("none", 0, "training.epochs=3", "training.learning_rate=0.03"))
        last = execute(job("none", 0, "training.epochs=3", "training.learning_rate=0.03", "training.select=last"))
        assert last.best_epoch == 3 and trainings == ["none, seed 0"]
        again = execute(job("none", 0, "training.epochs=3", "training.learning_rate=0.03"))
        assert (again.best_epoch, again.test) == (best.best_epoch, best.test)

    def test_without_its_weights_a_finished_run_is_not_trained_again_unasked(self, job, trainings) -> None:
        execute(job())
        (job().folder / BEST).unlink()
        with pytest.raises(WouldEraseError, match=r"evaluation.batch_size 512 -> 24\), 1 finished run would be erased"):
            execute(job("none", 0, "evaluation.batch_size=24"))
        assert execute(job()).status == "finished" and len(trainings) == 1
        execute(job("none", 0, "evaluation.batch_size=24", overwrite=True))
        assert len(trainings) == 2

    def test_scores_that_cannot_be_made_again_leave_the_old_ones(self, job, trainings, monkeypatch) -> None:
        first = execute(job())
        other = job("none", 0, "evaluation.batch_size=24")
        with monkeypatch.context() as patch:
            patch.setattr(Classification, "judge", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
            assert execute(other).status == "failed"
        assert (job().folder / TRACEBACK).exists() and read_run(job().folder).result == first
        assert execute(other).status == "finished" and len(trainings) == 1

    def test_a_comparison_scores_again_and_says_so(self, tiny, listener, tmp_path, trainings) -> None:
        compare(tiny, METHODS, 1, tmp_path, listener)
        attacked = read_recipe("digits", "demo", [*TINY, "evaluation.batch_size=24"])
        compare(attacked, METHODS, 1, tmp_path, listener)
        line = "2 finished runs are scored again from their weights, not trained (evaluation.batch_size 512 -> 24)"
        assert line in listener.lines and listener.planned[-1] == 0 and len(trainings) == 2

    def test_trials_are_not_scored_again_for_what_does_not_concern_them(self, job, trainings) -> None:
        trial = job(part=TUNING, keep_weights=False)
        result = execute(trial)
        changed = job("none", 0, "evaluation.batch_size=24", "evaluation.pgd_steps=3", part=TUNING, keep_weights=False)
        assert execute(changed) == result and len(trainings) == 1

    def test_trials_keep_no_weights_so_that_other_ones_are_trained_again(self, job, trainings) -> None:
        execute(job(part=TUNING, keep_weights=False))
        last = execute(job("none", 0, "training.select=last", part=TUNING, keep_weights=False, overwrite=True))
        assert last.best_epoch == 2 and len(trainings) == 2

    def test_a_run_that_an_older_version_scored_counts(self, job, trainings) -> None:
        execute(job())
        path = job().folder / RESULT
        stored = json.loads(path.read_text())
        del stored["scored"], stored["scored_with"]
        path.write_text(json.dumps(stored))
        assert execute(job()).status == "finished"
        assert execute(job("none", 0, "evaluation.batch_size=24")).scored["evaluation"]["batch_size"] == 24
        assert len(trainings) == 1


class TestOverwriting:
    def test_train_asks_before_it_erases(self, tmp_path: Path, capsys, trained) -> None:
        command = ["train", "--out", str(tmp_path), "--set", *TINY]
        assert main(command) == 0
        before = files(tmp_path)
        capsys.readouterr()
        assert main([*command, "training.learning_rate=0.01"]) == 2
        captured = capsys.readouterr()
        assert captured.err.splitlines()[-1] == (
            f"attentiondrop train: none, seed 0 in {tmp_path}: made with another recipe "
            "(training.learning_rate 0.001 -> 0.01), 1 finished run would be erased; use another --out, or --overwrite to "
            "train anew"
        )
        assert files(tmp_path) == before and len(trained) == 1
        assert main([*command, "training.learning_rate=0.01", "--overwrite"]) == 0
        assert len(trained) == 2

    def test_ablate_asks_before_it_erases(self, tmp_path: Path, capsys, trained) -> None:
        command = [
            "ablate",
            "--method",
            "hard",
            "--vary",
            "p=0.1",
            "--seeds",
            "1",
            "--out",
            str(tmp_path),
            "--set",
            *TINY,
        ]
        assert main(command) == 0
        assert main([*command, "training.epochs=3"]) == 2
        assert "2 finished runs would be erased" in capsys.readouterr().err.splitlines()[-1]
        assert main([*command, "training.epochs=3", "--overwrite"]) == 0
        assert len(trained) == 4

    def test_what_has_not_finished_needs_no_asking(self, job, trained, monkeypatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(execution, "_train_and_test", interrupted)
            with pytest.raises(KeyboardInterrupt):
                execute(job())
        (job().folder / STATE).write_bytes(b"of the other recipe")
        assert execute(job("none", 0, "training.epochs=3")).status == "finished"
        assert not (job().folder / STATE).exists()


class TestVersions:
    @staticmethod
    def made_with(folder: Path, torch: str) -> None:
        path = folder / REQUEST
        stored = json.loads(path.read_text())
        stored["environment"]["torch"] = torch
        path.write_text(json.dumps(stored))

    def test_kept_runs_of_other_versions_are_said_in_one_line(self, tiny, listener, tmp_path, trained, capsys) -> None:
        compare(tiny, METHODS, 1, tmp_path, listener)
        compare(tiny, METHODS, 1, tmp_path, listener)
        assert not [line for line in listener.lines if "other versions" in line]
        self.made_with(run_folder(tmp_path, "none", 0), "2.0.1")
        compare(tiny, METHODS, 1, tmp_path, listener)
        (line,) = [line for line in listener.lines if "other versions" in line]
        assert line.startswith("1 of them were made with other versions: torch 2.0.1, attentiondrop ")
        assert main(["report", str(tmp_path)]) == 0
        assert "The runs were made with different versions" in capsys.readouterr().out

    def test_a_run_that_goes_on_with_another_version_names_both(self, job) -> None:
        one = job("none", 0, "training.epochs=3")

        def stop(done: int) -> None:
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(one, stop)
        self.made_with(one.folder, "2.0.1")
        execute(one)
        found = read_run(one.folder).environment["torch"]
        assert found.startswith("2.0.1, then ") and found.count("then") == 1
