"""Timing a few steps: parts end early, the share that was scored is known, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs import timed_steps
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.tasks.interface import Batch


class FakeData(SimpleNamespace):
    """Five batches of four examples in each part."""

    counts = {"train": 20, "validation": 20}

    def having(self, *parts: str) -> FakeData:
        return self

    def train_batches(self, **arguments: int):
        return (Batch(torch.zeros(4, 1), None) for _ in range(5))

    def batches(self, part: str, batch_size: int):
        return (Batch({"flag": True, "tokens": torch.zeros(4, 1)}, None) for _ in range(5))


@pytest.mark.parametrize(("steps", "taken"), [(2, 2), (9, 5)])
def test_parts_end_early(steps: int, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_steps, "STEPS", steps)
    data = timed_steps._FewBatches(FakeData(name="fake")).having("train", "validation")
    assert len(list(data.train_batches(epoch=0, batch_size=4))) == taken == data.seen.train
    assert len(list(data.batches("validation", 4))) == taken
    assert data.seen.share == taken / 5 and data.name == "fake"


def test_a_slow_part_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_steps, "SECONDS", -1.0)
    assert len(list(timed_steps._FewBatches(FakeData()).train_batches(epoch=0, batch_size=4))) == 1


def test_no_batch_begins_after_the_end() -> None:
    data = timed_steps._FewBatches(FakeData(), timed_steps._Seen(end=0.0))
    with pytest.raises(timed_steps.TooSlowError, match="longer than 10 s"):
        next(data.train_batches(epoch=0, batch_size=4))


def timed(sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> timed_steps.Pace:
    """The pace of a run on a CPU. Stores the sizes of its training batches."""
    kept = timed_steps._FewBatches.train_batches

    def train_batches(self, **arguments):
        for batch in kept(self, **arguments):
            sizes.append(len(batch.targets))
            yield batch

    monkeypatch.setattr(timed_steps._FewBatches, "train_batches", train_batches)
    monkeypatch.setattr(timed_steps, "STEPS", 2)
    changes = ("data.limit=96", "training.batch_size=64", "training.device=cpu", *changes)
    recipe = read_recipe("digits", "demo", changes)
    found = timed_steps.pace_of(Job(recipe.to_dict(), "none", 0, str(tmp_path / "out")))
    counts = timed_steps.data_for(recipe).counts
    assert found.steps == counts["train"] // 64 and found.parts == 1 + counts["test"] / counts["validation"]
    return found


@pytest.mark.parametrize(("parts", "expected"), [(1, [2, 2, 8, 32, 64, 64]), (4, [4, 4, 16, 64, 64])])
def test_on_a_cpu_batches_grow(
    parts: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(timed_steps, "SECONDS", 1e6)
    timed(sizes, tmp_path, monkeypatch, f"training.accumulate={parts}")
    assert sizes == expected


def test_a_slow_step_is_timed_on_few_examples_and_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, seconds = list[int](), list[float]()

    class Timed(timed_steps.Training):
        def run(self, on_epoch):
            return super().run(lambda epoch: (seconds.append(epoch.seconds), on_epoch(epoch)))

    monkeypatch.setattr(timed_steps, "Training", Timed)
    monkeypatch.setattr(timed_steps, "SECONDS", -1.0)
    found = timed(sizes, tmp_path, monkeypatch)
    assert sizes == [2, 2, 2] and found.step == pytest.approx(32 * seconds[-1])


def test_a_method_with_fewer_epochs_is_timed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has two of three epochs here. With less than two it looked like a run that diverged."""
    monkeypatch.setattr(timed_steps, "STEPS", 1)
    recipe = read_recipe("digits", "demo", ["data.limit=64", "training.batch_size=16", "training.device=cpu"])
    job = Job(recipe.to_dict(), "shorter(times=0.6)+hard(p=0.1,k=3)", 0, str(tmp_path / "out"))
    assert timed_steps.pace_of(job, threads=1).step > 0


def test_a_run_is_timed_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_steps, "STEPS", 2)
    recipe = read_recipe("digits", "demo", ["data.limit=64", "training.batch_size=16", "training.device=cpu"])
    job = Job(recipe.to_dict(), "hard(p=0.1,k=3)", 0, str(tmp_path / "out"))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = timed_steps.pace_of(job, threads=1)
    assert torch.equal(torch.get_rng_state(), before) and not (tmp_path / "out").exists()
    counts = timed_steps.data_for(recipe).counts
    assert found.steps == counts["train"] // 16 and found.parts == 1 + counts["test"] / counts["validation"]
    # (The start is what is left of the whole time: nothing, if the machine was busy elsewhere.)
    assert min(found.step, found.validation) > 0 and found.start >= 0
    assert found.of(job) > job.epochs * found.steps * found.step


def test_what_is_not_done_in_every_epoch_does_not_count_in_every_epoch(tmp_path: Path) -> None:
    pace = timed_steps.Pace(start=1.0, step=0.5, validation=10.0, save=1000.0, steps=2, parts=2.0)

    def seconds(*changes: str) -> float:
        recipe = read_recipe("digits", "demo", ["training.epochs=7", "measure.probes=0", *changes])
        return pace.of(Job(recipe.to_dict(), "none", 0, str(tmp_path)))

    assert seconds() == 1 + 7 * (2 * 0.5 + 10 + 1000) + 2 * 10
    # After the epochs 3, 6 and 7, and after the epochs 5 and 7.
    assert seconds("training.validate_every=3", "training.save_every=5") == 1 + 7 * 2 * 0.5 + 3 * 10 + 2 * 1000 + 2 * 10
