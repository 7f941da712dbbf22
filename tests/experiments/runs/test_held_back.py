"""Nothing that chooses gets the test part: neither tuning, nor the choice of the epoch, nor ablations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.cli.main import main
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs import execute as execution
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.kinds import FINAL, TUNING, VARIED
from attentiondrop.experiments.runs.pool import describe
from attentiondrop.experiments.runs.store import REQUEST, RESULT, Result, read_run
from attentiondrop.experiments.studies import compare as comparing
from attentiondrop.experiments.studies.ablate import ablate
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.tasks.class_scores import scores_of_part
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.classification.data.dataset import ImageData
from attentiondrop.experiments.tasks.classification.task import Classification

from ..conftest import TINY, scored


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The parts of the data that were read."""
    found: set[str] = set()
    real = ImageData.batches

    def noted(self, part: str, *args, **kwargs):
        found.add(part)
        return real(self, part, *args, **kwargs)

    monkeypatch.setattr(ImageData, "batches", noted)
    return found


def test_a_part_that_is_held_back_cannot_be_read(tiny) -> None:
    data = load_data(tiny.data).having("train", "validation")
    assert data.counts.keys() == data.checksums.keys() == data.images.keys() == {"train", "validation"}
    with pytest.raises(AttentionDropError, match="part: expected one of 'train', 'validation', received 'test'"):
        data.batches("test", 8)
    assert sum(len(labels) for _, labels in data.batches("validation", 8)) == data.counts["validation"]


@pytest.mark.parametrize("kind", [TUNING, VARIED])
def test_a_run_that_chooses_neither_reads_nor_stores_nor_tells_the_test_part(job, looked_at, kind: str) -> None:
    # An attack needs the test part too, so there is none.
    one = job("none", 0, "evaluation.pgd_epsilons=[0.03]", part=kind, keep_weights=False)
    result = execute(one)
    assert looked_at == {"validation"}
    assert result.status == "finished" and result.validation is not None
    assert (result.test, result.reliability, result.robustness) == (None, None, None)
    stored = json.loads((one.folder / RESULT).read_text())
    assert (stored["test"], stored["reliability"], stored["robustness"]) == (None, None, None)
    assert json.loads((one.folder / REQUEST).read_text())["checksums"].keys() == {"train", "validation"}
    assert describe(one, result).startswith(f"validation accuracy {100 * result.validation['accuracy']:.1f} %")


def test_a_final_run_is_tested_once_at_its_end(job, looked_at) -> None:
    def epoch(done: int) -> None:
        assert "test" not in looked_at, done

    result = execute(job(), epoch)
    assert looked_at == {"validation", "test"}
    assert describe(job(), result).startswith(f"test accuracy {100 * result.test['accuracy']:.1f} %")


def test_tuning_and_ablations_are_not_tested_and_the_screen_says_which_part_it_shows(
    listener, tmp_path, monkeypatch
) -> None:
    held: dict[str, set[bool]] = {}
    real = execution._train_and_test

    def noted(job, data, *rest):
        held.setdefault(job.part, set()).add("test" in data.counts)
        return real(job, data, *rest)

    monkeypatch.setattr(execution, "_train_and_test", noted)
    recipe = read_recipe("digits", "demo", [*TINY, "training.epochs=1", "tuning.trials=2"])
    compare(recipe, ["none", "dropout"], 1, tmp_path, listener)
    ablate(recipe, {"dropout": {"p": [0.1]}}, 1, tmp_path, listener)
    assert held == {TUNING: {False}, FINAL: {True}, VARIED: {False}}
    told = [line for line in listener.lines if "accuracy" in line]
    for line in told:
        part = "validation" if ", tuning:" in line or ", ablation:" in line else "test"
        assert f": {part} accuracy" in line
    assert sum(", tuning:" in line for line in told) == 4 and sum(", ablation:" in line for line in told) == 2


METRICS = Classification.metrics


class TestChoosingOnTheWrongPart:
    """Broken versions of both choices. Each must choose something else here; otherwise no test would notice them."""

    @staticmethod
    def results() -> dict[str, Result]:
        """Results of two settings, as older versions stored them. Validation and test prefer different settings."""

        def result(validation: float, test: float) -> Result:
            first, second = (scored(accuracy, 1.0, 0.0, 0.0) for accuracy in (validation, test))
            return Result("finished", 1.0, 1, validation=first, test=second)

        return {"a": result(validation=0.9, test=0.1), "b": result(validation=0.1, test=0.9)}

    def test_the_setting(self) -> None:
        results = self.results()
        assert comparing._best(METRICS, results) == "a"
        assert max(results, key=lambda method: results[method].test["accuracy"]) == "b"

    def test_the_setting_of_a_study_that_an_older_version_tuned(self, listener, tmp_path, monkeypatch) -> None:
        """Older versions tested their trials. The stored test scores are kept, but the choice does not see them."""
        recipe = read_recipe("digits", "demo", [*TINY, "training.epochs=1", "tuning.trials=2"])
        first = compare(recipe, ["dropout"], 1, tmp_path, listener).methods[0]
        other = next(trial for trial in first.trials if trial != first.method)
        for trial, test in ((first.method, 0.0), (other, 1.0)):
            (path,) = tmp_path.glob(f"tuning/{trial.replace('(', '_').rstrip(')')}/*/{RESULT}")
            stored = json.loads(path.read_text())
            stored["test"] = stored["validation"] | {"accuracy": test}
            path.write_text(json.dumps(stored))
        seen: list[Result] = []
        real = comparing._best

        def noted(metrics, results):
            seen.extend(results.values())
            return real(metrics, results)

        monkeypatch.setattr(comparing, "_best", noted)
        assert compare(recipe, ["dropout"], 1, tmp_path, listener).methods[0] == first
        assert "3 of 3 runs are finished already" in listener.lines
        assert len(seen) == 2 and all(result.test is None for result in seen)

    @staticmethod
    def scores_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
        """Validation scores fall from epoch to epoch; test scores would rise."""
        asked: list[str] = []

        def scores(self, model, data, part: str, *_: object) -> dict[str, float]:
            assert data.counts[part]
            asked.append(part)
            step = asked.count(part)
            return scored(0.5 - 0.1 * step if part == "validation" else 0.5 + 0.1 * step, 1.0, 0.0, 0.0)

        monkeypatch.setattr(Classification, "scores", scores)

    def test_the_epoch(self, job, monkeypatch) -> None:
        self.scores_by_part(monkeypatch)
        assert execute(job()).best_epoch == 1

    def test_the_epoch_by_a_mutant(self, job, monkeypatch) -> None:
        self.scores_by_part(monkeypatch)
        real = Classification.scores

        def mutant(self, model, data, part, *rest):
            return real(self, model, data, "test", *rest)

        # If training had all parts, a choice on the test part would pick another epoch.
        with monkeypatch.context() as patch:
            patch.setattr(Classification, "scores", mutant)
            patch.setattr(ImageData, "having", lambda self, *parts: self)
            run = execute(job(seed=1))
        assert [epoch.validation["accuracy"] for epoch in read_run(job(seed=1).folder).epochs] == [0.6, 0.7]
        assert run.best_epoch == 2
        # Without the test part, such a choice fails.
        monkeypatch.setattr(
            Classification, "scores", lambda self, model, data, part, *rest: scores_of_part(model, data, "test", *rest)
        )
        failed = execute(job(seed=2))
        assert failed.status == "failed" and "received 'test'" in failed.error


def test_the_command_line_says_which_part_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [*TINY, "training.epochs=1"]
    assert main(["train", "--set", *changes, "--out", str(tmp_path)]) == 0
    assert "none, seed 0: test accuracy" in capsys.readouterr().out
