"""Translation from end to end: training, resuming, processes, captured steps, reports."""

from __future__ import annotations

import json
import time
from pathlib import Path

import forks
import numpy as np
import pytest
import torch

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.report.write import write_summary
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.identity import recorded, scored_from, trained_from
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.kinds import FINAL, TUNING
from attentiondrop.experiments.runs.store import RESULT, read_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.tasks.exhibits import Exhibits
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.train import checkpoint, loop
from attentiondrop.experiments.train.epoch_log import LAST, STATE
from attentiondrop.experiments.train.loop import Training
from attentiondrop.parsing import parse

from ...train.op_tape import TapeRecorder

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("sacremoses")

TINY = [
    "data.sentences=60",
    "data.vocabulary=280",
    "model.layers=1",
    "model.width=16",
    "model.feedforward=16",
    "model.heads=2",
    "training.epochs=3",
    "training.batch_size=640",
    f"training.learning_rate={2.0**-7}",
    "training.device=cpu",
    "measure.probes=0",
    "evaluation.beam=2",
    "evaluation.length_factor=1.0",
    "evaluation.length_extra=2",
]
METHOD = "dropout(p=0.1)+hard(p=0.3)"


def training(folder: Path, *changes: str, method: str = METHOD, cls: type[Training] = Training, say=None) -> Training:
    folder.mkdir(exist_ok=True)
    recipe = read_recipe("toy-translation", "demo", [*TINY, *changes])
    data = find_task("translation").load_data(recipe.data)
    return cls(recipe, read_method(method), 0, data, folder, say or (lambda line: None))


def weights(found: Training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in found.plain.state_dict().items()}


def check_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and not [name for name in one if not torch.equal(one[name], other[name])]


def test_a_comparison_on_generated_sentences(listener, tmp_path: Path) -> None:
    """The whole way that `attentiondrop compare` goes, on a few hundred sentences."""
    changes = [*TINY, "data.sentences=200", "training.epochs=2", "training.batch_size=1280", "measure.probes=1"]
    recipe = read_recipe("toy-translation", "demo", changes)
    compare(recipe, ["none", "hard+consistency"], 1, tmp_path, listener)
    assert any(line.startswith("none, seed 0: test BLEU ") for line in listener.lines)
    run = read_run(run_folder(tmp_path, "hard+consistency", 0))
    assert run is not None and run.result is not None and run.result.status == "finished"
    names = {"bleu", "tokenised_bleu", "chrf", "nll", "perplexity", "accuracy"}
    assert set(run.result.test) == set(run.result.validation) == names
    first, last = (epoch.validation["nll"] for epoch in (run.epochs[0], run.epochs[-1]))
    assert last < first and run.result.validation["nll"] == pytest.approx(last, rel=1e-6)
    assert run.epochs[-1].attention_entropy is not None
    summary = summarise(read_study(tmp_path))
    paths = write_summary(summary)
    page, markdown = paths.html.read_text(), paths.markdown.read_text()
    for text in (page, markdown):
        assert "Test BLEU" in text and "tok:13a" in text and "Translations from en to xx" in text
        assert "Other metrics" in text and "Calibration" not in text and "image" not in text.lower()
    assert "Subwords/s" in page and "Validation NLL" in page
    assert "&lt;pad&gt;" not in page
    # Two maps for a method that acts on attention, one for the others; three kinds of attention each.
    assert page.count("Attention of the decoder to the source, with hard") == 1
    assert page.count("Attention of the decoder to the source, with") == 1 + 2
    assert "tokenised_bleu" in paths.csv.read_text()


def test_a_killed_run_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    changes = [*TINY, "training.epochs=9", "training.average_last=7"]
    recipe = read_recipe("toy-translation", "demo", changes).to_dict()
    alone, killed = (Job(recipe, METHOD, 0, str(tmp_path / out)) for out in ("alone", "killed"))
    call = ["train", "toy-translation", "--method", METHOD, "--out", killed.out, "--set", *changes]
    process = forks.command(*call)
    limit = time.monotonic() + 120
    # The mean of the last weights has begun with the third epoch, and is a part of the state after the fourth.
    while process.is_running() and time.monotonic() < limit and killed.epochs_done() < 5:
        time.sleep(0.005)
    assert process.kill()
    assert (killed.folder / STATE).exists() and not (killed.folder / RESULT).exists()
    lines: list[str] = []
    results = [execute(alone), execute(killed, say=lines.append)]
    assert any("resumes after epoch" in line for line in lines)
    assert results[0].status == "finished"
    one, two = (read_run(job.folder) for job in (alone, killed))
    assert [epoch.train_loss for epoch in one.epochs] == [epoch.train_loss for epoch in two.epochs]
    assert (results[0].validation, results[0].test) == (results[1].validation, results[1].test)
    check_equal(*(checkpoint.load_weights(job.folder / LAST) for job in (alone, killed)))


@pytest.mark.slow
def test_two_processes_find_the_losses_of_one(tmp_path: Path) -> None:
    changes = ["training.epochs=2", "model.dropout=0.0"]
    alone = training(tmp_path / "one", *changes, method="none").run(lambda epoch: None)
    call = ["train", "toy-translation", "--out", str(tmp_path / "two"), "--set", *TINY, *changes]
    done = forks.two_ranks(forks.run_command, *call)
    assert [status for status, _ in done] == [0, 0], done
    two = read_run(run_folder(tmp_path / "two", "none", 0))
    assert two is not None and two.result is not None and two.environment["processes"] == "2"
    assert [epoch.train_loss for epoch in two.epochs] == pytest.approx([e.train_loss for e in alone], rel=1e-5)
    assert [epoch.validation for epoch in two.epochs] == [pytest.approx(e.validation, rel=1e-4) for e in alone]
    assert two.result.test["bleu"] >= 0.0


class Captured(Training):
    """A training on the CPU that thinks it could be captured."""

    tape: TapeRecorder

    def _why_not_capture(self) -> str | None:
        return self.applied.uncapturable()

    def _recorder(self) -> TapeRecorder:
        self.tape = TapeRecorder()
        return self.tape


@pytest.mark.parametrize(
    ("method", "changes"),
    [(METHOD, ["training.accumulate=2"]), ("hard(p=0.5)+consistency", ["training.kinds=[cross]"])],
)
def test_captured_steps_end_where_uncaptured_ones_do(tmp_path, monkeypatch, method: str, changes: list[str]) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))
    changes = ["training.epochs=1", *changes]
    plain, captured = (
        training(tmp_path / cls.__name__, *changes, method=method, cls=cls) for cls in (Training, Captured)
    )
    losses = [[epoch.train_loss for epoch in found.run(lambda epoch: None)] for found in (plain, captured)]
    assert captured.captured == "captured" and losses[0] == losses[1]
    shapes = {tuple(batch.targets.tokens.shape) for batch in plain.data.train_batches(seed=0, epoch=0, batch_size=640)}
    assert captured.tape.recorded == len(shapes) > 2 and captured.tape.replays == plain.steps
    check_equal(weights(plain), weights(captured))


def test_the_last_weights_are_the_mean_of_the_last_epochs(tmp_path: Path) -> None:
    found = training(tmp_path, "training.average_last=2", "training.keep_every=1", "training.schedule=inverse_sqrt")
    found.run(lambda epoch: None)
    second, third = (checkpoint.load_weights(tmp_path / f"epoch{number}.safetensors") for number in (2, 3))
    last = checkpoint.load_weights(tmp_path / LAST)
    for name in last:
        torch.testing.assert_close(last[name], (second[name] + third[name]) / 2)
        assert name.endswith("bias") or not torch.equal(last[name], third[name])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hard(p=0.5)", [True, True, True]),
        ("hard(p=layers(values=[0.0,0.5,0.5]))", [False, True, True]),
        ("blur(sigma_max=2.0,axes=both)", [True, False, True]),  # refused under a causal mask
    ],
)
def test_attention_maps_before_and_after(tmp_path: Path, text: str, shown: list[bool]) -> None:
    found = training(tmp_path, method="none")
    spec = parse(text)
    maps = find_task("translation").exhibits(found.plain, found.data, found.recipe.evaluation, spec).maps
    assert [each.kind for each in maps] == ["encoder", "decoder", "cross"]
    for each, changed in zip(maps, shown, strict=True):
        assert np.shape(each.before) == (len(each.queries), len(each.keys))
        assert np.allclose(np.sum(each.before, -1), 1.0, atol=0.01)
        assert (each.after not in (None, each.before)) == changed
    assert [("not shown" in each.title) for each in maps] == [False, "both" in text, False]
    chosen = Exhibits((), maps).acting_on(["cross"]).maps
    assert [each.after is None for each in chosen] == [True, True, False]
    assert Exhibits((), maps).acting_on(None).maps == maps


def test_methods_act_on_the_chosen_kinds_only(tmp_path: Path) -> None:
    found = training(tmp_path, "training.kinds=[encoder, cross]")
    assert [site.kind for site in found.applied.attachment.sites] == ["encoder", "cross"]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    training(tmp_path, "data.longest=40", say=lines.append)
    (line,) = lines
    assert line.startswith("data.longest: ") and "training pairs left out" in line


def test_evaluate_gives_the_scores_of_the_run(tmp_path: Path, capsys) -> None:
    from attentiondrop.cli.main import main

    out = str(tmp_path / "out")
    assert main(["train", "toy-translation", "--out", out, "--set", *TINY, "training.epochs=1"]) == 0
    folder = run_folder(Path(out), "none", 0)
    assert main(["evaluate", str(folder), "--device", "cpu"]) == 0
    written = json.loads((folder / "evaluation.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    assert written["test"] == result["test"] and written["signatures"] == result["signatures"]
    assert "BLEU" in capsys.readouterr().out


def test_another_search_makes_tuning_runs_stale_and_final_runs_are_scored_again() -> None:
    before, after = (
        read_recipe("toy-translation", "demo", [*TINY, f"evaluation.beam={beam}"]).to_dict() for beam in (2, 3)
    )
    assert trained_from(before, {}, FINAL) == trained_from(after, {}, FINAL)
    assert scored_from(before, {}, FINAL) != scored_from(after, {}, FINAL)
    assert trained_from(before, {}, TUNING) != trained_from(after, {}, TUNING)


def test_settings_that_older_versions_did_not_have_are_recorded_only_if_they_are_used() -> None:
    def training_of(*changes: str) -> dict:
        return recorded(read_recipe("digits", "demo", changes).to_dict())["training"]

    added = {"schedule", "betas", "average_last", "kinds"}
    assert not added & set(training_of())
    used = training_of("training.schedule=inverse_sqrt", "training.betas=[0.9, 0.98]", "training.kinds=[encoder]")
    assert added & set(used) == {"schedule", "betas", "kinds"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.schedule=linear", "training.schedule: expected one of 'cosine', 'inverse_sqrt'"),
        ("training.betas=[0.9]", r"training.betas: expected two numbers in \[0, 1\)"),
        ("training.betas=[0.9, 1.0]", r"training.betas: expected two numbers in \[0, 1\)"),
        ("training.kinds=[crossed]", "training.kinds: expected null, or some of encoder, decoder, cross"),
        ("training.kinds=[]", "training.kinds: expected null"),
        ("training.average_last=0", "training.average_last: expected a number >= 1"),
        ("evaluation.beam=0", "evaluation.beam"),
        ("evaluation.length_penalty=-1", "evaluation.length_penalty"),
    ],
)
def test_wrong_settings(change: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_recipe("toy-translation", "demo", [change])


def test_the_mean_of_weights_excludes_the_moving_average() -> None:
    with pytest.raises(ArgumentError, match=r"training.average_last: expected 1 with training.ema"):
        read_recipe("toy-translation", "demo", ["training.ema=0.9", "training.average_last=2"])


@pytest.mark.parametrize("name", ["toy-translation", "multi30k", "wmt14", "opus"])
def test_shipped_recipes(name: str) -> None:
    for size in ("demo", "small") if name == "toy-translation" else ("demo", "small", "paper"):
        recipe = read_recipe(name, size)
        assert recipe.task == "translation" and recipe.training.label_smoothing == 0.1
    anchor = read_recipe("multi30k", "small")
    assert anchor.model.sizes == (4, 128, 256, 4) and anchor.model.dropout == 0.3 and anchor.model.norm == "post"
    assert read_recipe("wmt14", "paper").model.sizes == (6, 512, 2048, 8)
