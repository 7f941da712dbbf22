"""One run in its folder: it is recorded with its recipe and environment, kept while it is valid, else run again."""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from pathlib import Path
from types import SimpleNamespace

import forks
import full_disk
import pytest
import torch
from filelock import FileLock

from attentiondrop import AttentionDropError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.files.whole_files import DamagedRecordError, append_line, read_lines, write_json
from attentiondrop.experiments.runs import execute as execution
from attentiondrop.experiments.runs.execute import BusyError, execute
from attentiondrop.experiments.runs.finished_run import find_run, load_run
from attentiondrop.experiments.runs.job import LOCK, Job
from attentiondrop.experiments.runs.kinds import TUNING
from attentiondrop.experiments.runs.store import REQUEST, RESULT, TRACEBACK, read_run, write_request
from attentiondrop.experiments.tasks.classification.scoring import judge
from attentiondrop.experiments.tasks.classification.settings import TimmSettings
from attentiondrop.experiments.train.epoch_log import BEST, EPOCHS, LAST, STATE

from ..conftest import TINY


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were trained, and not just read."""
    found: list[str] = []
    real = execution._train_and_test

    def noted(job: Job, *rest):
        found.append(job.label)
        return real(job, *rest)

    monkeypatch.setattr(execution, "_train_and_test", noted)
    return found


def test_a_run_is_recorded_with_what_made_it(job) -> None:
    one = job("hard", 1, "measure.probes=2", "evaluation.pgd_epsilons=[0.03]", "evaluation.pgd_steps=2")
    done: list[int] = []
    result = execute(one, done.append)
    assert done == [0, 1, 2]
    names = {path.name for path in one.folder.iterdir()}
    assert names == {REQUEST, EPOCHS, RESULT, BEST, LAST, LOCK}
    run = read_run(one.folder)
    assert run is not None and run.result == result and result.status == "finished"
    assert (run.request.method, run.request.seed) == ("hard", 1)
    assert run.request.recipe["training"]["epochs"] == 2
    assert run.request.checksums.keys() == {"train", "validation", "test"}
    assert {"torch", "timm", "accelerate", "commit", "device", "python", "platform"} <= run.environment.keys()
    assert [epoch.epoch for epoch in run.epochs] == [1, 2]
    assert all(epoch.gradient_variance > 0 and epoch.attention_entropy > 0 for epoch in run.epochs)
    assert result.best_epoch in (1, 2) and result.epochs == 2
    # The first epoch warms up: it does not count.
    assert result.throughput == run.epochs[1].samples / run.epochs[1].seconds
    assert result.steps == 2 * 48 / 16 and result.parameters > 1000
    assert result.counts == {"train": 48, "validation": 48, "test": 48}
    assert 0 <= result.test["accuracy"] <= 1 and result.test["nll"] > 0 and 0 <= result.test["ece"] <= 1
    assert sum(result.reliability.count) == 48
    assert result.robustness.epsilons == [0.0, 0.03] and len(result.robustness.accuracy) == 2
    assert result.robustness.accuracy[0] == result.test["accuracy"]


def test_a_finished_run_is_not_run_again(job, trained) -> None:
    assert execute(job()) == execute(job())
    assert len(trained) == 1
    execute(job(seed=1))
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("name", "content"), [(RESULT, '{"status": "fin'), (REQUEST, ""), (RESULT, "{}"), (RESULT, "[]"), (RESULT, "\0")]
)
def test_a_damaged_record_is_run_again(job, trained, name: str, content: str) -> None:
    first = execute(job())
    (job().folder / name).write_text(content)
    second = execute(job())
    assert len(trained) == 2
    assert first.test == second.test


def test_changed_settings_and_data_are_run_again(job, trained) -> None:
    execute(job())
    execute(job("none", 0, "training.learning_rate=0.01", overwrite=True))
    execute(job("none", 0, "data.label_noise=0.5", overwrite=True))
    assert len(trained) == 3
    execute(job("none", 0, "data.label_noise=0.5", "data.workers=9"))
    assert len(trained) == 3


def test_nothing_of_an_earlier_run_stays_in_its_folder(job) -> None:
    """Weights and scores of the old run would be taken for those of the new one."""
    one = job("none", 0, "training.keep_every=1")
    execute(one)
    (one.folder / "epoch7.safetensors").write_text("of a longer run")
    write_json(one.folder / "certificate.json", {})
    (one.folder / "logs").mkdir()
    execute(job("none", 0, "training.learning_rate=0.01", overwrite=True))
    assert {path.name for path in one.folder.iterdir()} == {REQUEST, EPOCHS, RESULT, BEST, LAST, LOCK}


def test_a_truncated_state_is_said_and_started_again(job) -> None:
    whole = execute(job())
    (job().folder / RESULT).unlink()
    (job().folder / STATE).write_bytes(b"\0" * 100)
    lines: list[str] = []
    again = execute(job(), say=lines.append)
    assert again.test == whole.test and again.validation == whole.validation
    assert len(lines) == 1 and "starts again, since" in lines[0] and "cannot be read" in lines[0]


def test_the_time_before_an_interruption_counts(job) -> None:
    """Of a run that is stopped after its first epoch, which took an hour, and that then fails once."""

    class Stopped(BaseException):
        pass

    def stop(epoch: int) -> None:
        if epoch == 1:
            raise Stopped

    one = job()
    with pytest.raises(Stopped):
        execute(dataclasses.replace(one, at_once=8), on_epoch=stop)
    (line,) = read_lines(one.folder / EPOCHS)
    (one.folder / EPOCHS).write_text(json.dumps(line | {"seconds": 3600.0}) + "\n")
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(execution, "scores_of", lambda *args: 1 / 0)
        failed = execute(one)
    assert (failed.status, failed.epochs) == ("failed", 2)
    result = execute(one)
    assert result.status == "finished" and 3600 < result.seconds < 3700
    assert read_run(one.folder).environment["runs at once"] == "8"  # it was not alone all the time


def test_the_time_of_scoring_counts(job, monkeypatch) -> None:
    """On a clock that jumps by an hour while the weights are scored."""
    jump, real, score = [0.0], time.perf_counter, execution.scores_of

    def slow(*args):
        jump[0] = 3600.0
        return score(*args)

    monkeypatch.setattr(execution, "time", SimpleNamespace(perf_counter=lambda: real() + jump[0]))
    monkeypatch.setattr(execution, "scores_of", slow)
    assert 3600 < execute(job()).seconds < 3700


def test_the_best_of_the_validated_epochs_is_scored(job) -> None:
    one = job("none", 0, "training.epochs=5", "training.validate_every=2")
    result = execute(one)
    judged = {epoch.epoch: epoch.validation for epoch in read_run(one.folder).epochs if epoch.validation is not None}
    assert list(judged) == [2, 4, 5] and result.status == "finished"
    assert result.validation["accuracy"] == pytest.approx(judged[result.best_epoch]["accuracy"])


def test_weights_of_trials_are_not_kept(job) -> None:
    one = job(part=TUNING, keep_weights=False)
    execute(one)
    assert {path.name for path in one.folder.iterdir()} == {REQUEST, EPOCHS, RESULT, LOCK}


def test_a_run_that_diverges_is_a_result_and_one_that_fails_is_tried_again(job, trained, tmp_path) -> None:
    diverged = job("none", 0, "training.learning_rate=1e30")
    result = execute(diverged)
    assert (result.status, result.test) == ("diverged", None)
    assert result.error == "the loss stopped being a number"
    assert execute(diverged) == result
    assert len(trained) == 1
    recipe = read_recipe("digits", "demo", [change for change in TINY if "arguments" not in change])
    recipe = dataclasses.replace(recipe, model=TimmSettings("resnet10t"))
    failed = Job(recipe.to_dict(), "hard", 1, str(tmp_path))
    result = execute(failed)
    assert result.status == "failed" and "no attention" in result.error, result.error
    assert "Traceback" in (failed.folder / TRACEBACK).read_text()
    assert execute(failed).status == "failed"
    assert len(trained) == 3


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_lack_of_memory_says_what_to_do(job, monkeypatch, error: Exception) -> None:
    def fail(*_):
        raise error

    monkeypatch.setattr(execution, "_train_and_test", fail)
    result = execute(job())
    assert result.status == "failed"
    assert result.error.startswith("out of memory: make training.batch_size smaller")


def test_a_full_disk_is_raised_and_the_last_state_survives(job, tmp_path: Path) -> None:
    """The run is in a separate process that can only write files of a few kilobytes."""
    execute(job("none", 7))
    one = job()
    status, text = forks.Fork(full_disk.run, one).wait()
    assert status == 1
    assert "refused: " in text and "File too large" in text and str(one.folder) in text
    assert not (one.folder / RESULT).exists()
    assert not list(one.folder.glob("*.tmp")) and not list(one.folder.glob(".*.tmp"))
    assert read_run(job("none", 7).folder).result.status == "finished"
    assert execute(one).status == "finished"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 9000


def test_another_process_on_the_same_run_is_noticed(job) -> None:
    one = job()
    one.folder.mkdir(parents=True)
    with FileLock(one.folder / LOCK), pytest.raises(BusyError, match="another process works on"):
        execute(one, wait=False)
    assert execute(one).status == "finished"


class TestLoadRun:
    def test_the_stored_weights_give_the_recorded_scores(self, job) -> None:
        one = job("dropout+hard")
        result = execute(one)
        loaded = load_run(one.folder)
        assert not loaded.model.training and loaded.method.text == "dropout(p=0.1)+hard(p=0.1,k=5)"
        found = judge(loaded.model, loaded.data, loaded.recipe.evaluation)
        assert found.test == result.test and found.validation == result.validation
        images, _ = next(loaded.data.batches("test", 8))
        assert torch.equal(loaded.model(images), loaded.model(images))
        loaded.model.train()
        assert not torch.equal(loaded.model(images), loaded.model(images))

    def test_what_is_no_finished_run_with_its_weights_is_refused(self, job, tmp_path: Path) -> None:
        with pytest.raises(AttentionDropError, match="expected the folder of a run"):
            load_run(tmp_path)
        one = job()
        execute(one)
        (one.folder / BEST).write_bytes(b"123")
        with pytest.raises(AttentionDropError, match=r"best\.safetensors cannot be read"):
            load_run(one.folder)
        (one.folder / BEST).unlink()
        with pytest.raises(AttentionDropError, match=r"the run has no best\.safetensors"):
            load_run(one.folder)
        (one.folder / RESULT).unlink()
        with pytest.raises(AttentionDropError, match="the run is not finished"):
            load_run(one.folder)

    def test_a_request_that_cannot_be_understood_is_damage(self, job) -> None:
        one = job()
        execute(one)
        content = json.loads((one.folder / REQUEST).read_text())
        for change in ({"method": "hrad"}, {"recipe": content["recipe"] | {"training": {"epochs": -1}}}):
            write_json(one.folder / REQUEST, content | change)
            with pytest.raises(DamagedRecordError, match=r"run\.json cannot be read"):
                load_run(one.folder)

    def test_of_many_runs_in_a_study_the_error_names_a_few(self, job, tmp_path: Path) -> None:
        for seed in range(10):
            write_request(job(seed=seed).folder, job().request({}), {})
        write_request(job(part=TUNING).folder, job().request({}), {})
        with pytest.raises(AttentionDropError, match=r"expected one run, it has 10: .*seed7, and 2 more$"):
            find_run(tmp_path)

    def test_other_data_is_refused(self, job) -> None:
        one = job()
        execute(one)
        content = json.loads((one.folder / REQUEST).read_text())
        content["checksums"]["test"] = "0" * 64
        write_json(one.folder / REQUEST, content)
        with pytest.raises(AttentionDropError, match="found other test data"):
            load_run(one.folder)


def test_lines_that_a_crash_cut_off_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert read_lines(path) == []
    append_line(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": ')
    assert read_lines(path) == [{"a": 1}]
