"""What the engine promises holds for language models: captured steps, resuming after a kill, processes, reports."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from rich.console import Console

from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.report.terminal import show
from attentiondrop.experiments.report.write import write_summary
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.kinds import TUNING
from attentiondrop.experiments.runs.store import read_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.train import loop
from attentiondrop.experiments.train.epoch_log import STATE
from attentiondrop.experiments.train.loop import Training

from ...train.op_tape import TapeRecorder
from .small import SMALL, recipe_of, training

ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def one_thread():
    """As many threads as the other processes have: sums may depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Captured(Training):
    """A training on the CPU that thinks it could be captured."""

    tape: TapeRecorder

    def _why_not_capture(self) -> str | None:
        return self.applied.uncapturable()

    def _recorder(self) -> TapeRecorder:
        self.tape = TapeRecorder()
        return self.tape


@pytest.mark.parametrize("method", ["hard(p=0.3)+consistency", "dropout(p=0.2)"])
def test_captured_steps_give_what_uncaptured_ones_give(method: str, tmp_path: Path, monkeypatch) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))
    changes = ["training.capture=on", f"training.learning_rate={2.0**-8}"]
    captured = training(tmp_path / "a", method, *changes, kind=Captured)
    plain = training(tmp_path / "b", method, changes[1])
    losses = [[epoch.train_loss for epoch in each.run(lambda epoch: None)] for each in (captured, plain)]
    # One graph serves all steps, since all batches have one shape. Reading a tensor would have raised.
    assert captured.captured == "captured" and captured.tape.recorded == 1
    assert captured.tape.replays == 2 * captured.steps
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, tensor in plain.plain.state_dict().items():
        assert torch.equal(tensor, captured.plain.state_dict()[name]), name


#: Recipe -> changes that make it small.
RECIPES = {
    "toy-language": SMALL,
    "toy-text-classification": [
        "data.sentences=80",
        "model.width=16",
        "training.batch_size=16",
        "training.epochs=2",
        "training.device=cpu",
        "measure.probes=0",
    ],
}
BOTH = ["toy-language", pytest.param("toy-text-classification", marks=pytest.mark.slow)]


def command(recipe: str, *arguments: str, out: Path, changes: tuple[str, ...] = ()) -> list[str]:
    return ["train", recipe, *arguments, "--set", *RECIPES[recipe], *changes, "--out", str(out)]


def job_of(recipe: str, out: Path, method: str = "none", changes: tuple[str, ...] = ()) -> Job:
    return Job(read_recipe(recipe, None, [*RECIPES[recipe], *changes]).to_dict(), method, 0, str(out))


def numbers(folder: Path):
    run = read_run(folder)
    assert run is not None and run.result is not None and run.result.status == "finished"
    return run.result.test, run.result.validation, run.result.best_epoch, [epoch.train_loss for epoch in run.epochs]


@pytest.mark.parametrize("recipe", BOTH)
def test_a_killed_run_resumes_to_the_result_of_an_undisturbed_one(recipe: str, tmp_path: Path, one_thread) -> None:
    changes, method = ("training.epochs=8",), "hard(p=0.3)"
    folder = run_folder(tmp_path / "killed", method, 0)
    process = forks.command(*command(recipe, "--method", method, out=tmp_path / "killed", changes=changes))
    limit = time.monotonic() + 120
    while not (folder / STATE).exists() and process.is_running() and time.monotonic() < limit:
        time.sleep(0.005)
    assert process.kill()
    killed = read_run(folder)
    assert killed is not None and killed.result is None and 0 < len(killed.epochs) < 8
    lines: list[str] = []
    for place in ("killed", "alone"):
        execute(job_of(recipe, tmp_path / place, method, changes), say=lines.append)
    assert len(lines) == 1 and "resumes after epoch" in lines[0]
    assert numbers(folder) == numbers(run_folder(tmp_path / "alone", method, 0))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_find_the_losses_of_one(recipe: str, tmp_path: Path, one_thread) -> None:
    execute(job_of(recipe, tmp_path / "one"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    shared = [*launch, "-m", "attentiondrop", *command(recipe, out=tmp_path / "two")]
    done = subprocess.run(shared, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (test, validation, _, losses), (test2, validation2, _, losses2) = (
        numbers(run_folder(tmp_path / place, "none", 0)) for place in ("one", "two")
    )
    assert read_run(run_folder(tmp_path / "two", "none", 0)).environment["processes"] == "2"
    assert losses == pytest.approx(losses2, rel=1e-5)
    assert test == pytest.approx(test2, rel=1e-4) and validation == pytest.approx(validation2, rel=1e-4)


def test_a_whole_comparison_with_its_report(listener, tmp_path: Path) -> None:
    recipe = recipe_of("training.accumulate=2", "measure.probes=2")
    compare(recipe, ["none", "hard"], 2, tmp_path, listener)
    assert any(line.startswith("none, seed 0: test loss ") for line in listener.lines)
    summary = summarise(read_study(tmp_path))
    assert [row.count("finished") for row in summary.rows] == [2, 2]
    out = io.StringIO()
    show(summary, Console(file=out, width=140))
    paths = write_summary(summary)
    page, table, markdown = paths.html.read_text(), paths.csv.read_text(), paths.markdown.read_text()
    for text in (out.getvalue(), page, markdown):
        assert "perplexity" in text.lower() and "bits per byte" in text.lower()
        assert "accuracy" not in text.lower() and "image" not in text.lower()
    assert "test_bits_per_byte" in table and "loss_difference" in table
    # Generated text may be shown: how each method continues it, and the attention for a sentence before and after.
    assert "Text that the model continues, by the first seed of each method" in markdown
    assert page.count("Self-attention of the last layer, without") == 2
    assert page.count("Self-attention of the last layer, with hard") == 1


def test_text_of_others_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 60)
    changes = ["data.name=file", f"data.root={tmp_path / 'text.txt'}", "training.epochs=1"]
    result = execute(job_of("toy-language", tmp_path, changes=tuple(changes)))
    assert result.status == "finished" and result.exhibits is None


def test_only_final_runs_show_text(tmp_path: Path) -> None:
    """A trial does not have the test part, which the text is from."""
    final = job_of("toy-language", tmp_path, changes=("training.epochs=1",))
    found = [execute(each) for each in (final, dataclasses.replace(final, part=TUNING))]
    assert [each.exhibits is None for each in found] == [False, True]
    assert [each.status for each in found] == ["finished", "finished"]
