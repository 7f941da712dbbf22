"""Comparators in whole runs: interruptions, more epochs, pruned weights, the choice of the best epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attentiondrop.cli.main import main
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.runs.execute import data_for, execute
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.runs.store import read_run
from attentiondrop.experiments.train.loop import Training

from ..conftest import TINY


def trained(recipe, method: str, folder: Path, *, killed: bool) -> dict[str, torch.Tensor]:
    """The last weights of a run, which may have been killed after every epoch."""
    folder.mkdir()

    def stop(epoch) -> None:
        if killed:
            raise KeyboardInterrupt

    while not (folder / "last.safetensors").exists():
        training = Training(recipe, read_method(method), 0, data_for(recipe), folder)
        training.resume()
        try:
            training.run(stop)
        except KeyboardInterrupt:
            continue
    return load_file(folder / "last.safetensors")


@pytest.mark.parametrize(
    "method",
    [
        "emateacher(weight=5.0,decay=0.9)+dropout(p=0.2)",
        "headpruning(share=0.5,at=0.6)+mixup",
        "manifoldmixup+layerdrop(p=0.5)",
        "adaptivespan(ramp=2.0,penalty=0.01)+dropdim(kind=span)",
    ],
)
def test_an_interrupted_run_ends_with_the_same_weights(job, tmp_path, method: str) -> None:
    recipe = job(method, 0, "training.epochs=3").settings()
    whole, parts = (trained(recipe, method, tmp_path / str(on), killed=on) for on in (False, True))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_longer_trains_on_and_its_schedule_is_stretched(job) -> None:
    short, long = job("none"), job("longer(times=3)")
    results = [execute(one) for one in (short, long)]
    assert [result.epochs for result in results] == [2, 6] == [short.epochs, long.epochs]
    rates = [[epoch.learning_rate for epoch in read_run(one.folder).epochs] for one in (short, long)]
    assert max(rates[1]) == pytest.approx(max(rates[0]), rel=0.3)
    assert rates[1][-1] < rates[0][-1]  # nearly zero at its own end, and at no earlier epoch
    assert rates[1][1] > 2 * rates[0][1]
    # What is recorded is the recipe of the study: all its methods share it.
    assert read_run(long.folder).request.recipe == read_run(short.folder).request.recipe


def test_the_chosen_epoch_is_of_the_pruned_model(job) -> None:
    one = job("headpruning(share=0.5,at=0.5)", 0, "training.epochs=4")
    result = execute(one)
    assert result.best_epoch >= 3
    for name in ("best", "last"):
        weights = load_file(one.folder / f"{name}.safetensors")
        heads = torch.stack([weights[f"blocks.{block}.attn.proj.weight"].unflatten(-1, (2, 8)) for block in range(2)])
        assert (heads.abs().sum((1, 3)) == 0).sum() == 2


@pytest.mark.parametrize("method", ["talkingheads(mix=0.1)", "adaptivespan", "topk(k=3)", "window", "lsh"])
def test_stored_weights_of_another_attention_give_the_stored_scores(job, method: str) -> None:
    one = job(method)
    result = execute(one)
    run = load_run(one.folder)
    assert run.task.judge(run.model, run.data, run.recipe.evaluation).test == pytest.approx(result.test, rel=1e-5)


def test_a_group_is_compared_and_reported(tmp_path, capsys) -> None:
    settings = [part for change in TINY for part in ("--set", change)]
    command = ["compare", "digits", "--size", "demo", "--methods", "data", "longer", *settings, "--set"]
    command += ["training.epochs=1", "--seeds", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    table = capsys.readouterr().out
    for name in ("none", "mixup(", "cutmix(", "manifoldmixup(", "longer("):
        assert name in table
    assert main(["compare", "digits", "--methods", "dta", "--out", str(tmp_path / "other")]) == 2
    assert "unknown group 'dta': did you mean 'data'? There are controls, ours," in capsys.readouterr().err
