"""A setup that cannot train gives one error before the first run. A later error only makes its own run fail."""

from __future__ import annotations

import errno
import importlib.util
import re
from pathlib import Path

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.cli.main import main
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs import checking
from attentiondrop.experiments.runs import execute as execution
from attentiondrop.experiments.runs.checking import check_jobs
from attentiondrop.experiments.runs.execute import data_for, execute
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.pool import Where, run_jobs
from attentiondrop.experiments.runs.store import TRACEBACK
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.tasks.classification.task import Classification

from ..conftest import TINY

#: A small Swin model. Its forward pass asserts that images have 224 x 224 pixels.
SWIN = ["model.name=swin_tiny_patch4_window7_224", "model.arguments={depths: [1], num_heads: [1], embed_dim: 8}"]


def of_model(*changes: str, method: str = "none") -> Job:
    settings = [change for change in TINY if not change.startswith("model")]
    return Job(read_recipe("digits", "demo", [*settings, *changes]).to_dict(), method, 0, "unused")


@pytest.mark.parametrize(
    ("changes", "method", "message"),
    [
        (["model.name=vit_digit"], "none", "model.name 'vit_digit': no such model of timm, did you mean 'vit_digits'?"),
        (SWIN, "none", "with method none: cannot be trained on images of 1 x 8 x 8 pixels: AssertionError: Input"),
        (["model.arguments={num_heads: 3}"], "none", "model: vit_digits cannot be built with"),
        (["model.patch_size=16"], "none", "cannot be trained on images of 1 x 8 x 8 pixels: RuntimeError"),
        (["model.name=resnet10t"], "hard", "model resnet10t with method hard: cannot be trained"),
        (["model.name=resnet10t"], "hard", ". Choose another model, or methods that do not act on attention"),
        (["model.name=resnet10t", "model.checkpoint_activations=true", "model.arguments={a: 1}"], "none", "TypeError"),
    ],
)
def test_what_cannot_be_trained_is_one_line(changes: list[str], method: str, message: str) -> None:
    with pytest.raises(AttentionDropError) as caught:
        check_jobs([of_model(*changes, method=method)])
    assert message in str(caught.value)


FINE = ["model.name=vit_tiny_patch16_224", "model.arguments={depth: 1, embed_dim: 12, num_heads: 2}"]
TOKENS = "model.patch_size: images of 136 x 136 pixels in patches of 4 are 1,156 tokens, which is very slow"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ([*FINE, "model.patch_size=4"], [f"{TOKENS}; with model.patch_size=8 there are 289"]),
        ([*FINE, "model.patch_size=8"], []),
        (["model.name=resnet10t"], []),
    ],
)
def test_very_many_tokens_are_told_before_the_first_run(changes: list[str], lines: list[str], monkeypatch) -> None:
    monkeypatch.setattr(checking, "_passed", set())
    said: list[str] = []
    few = ["data.name=fake", "data.image_size=136", "data.limit=4", *changes]
    check_jobs([of_model(*few), of_model(*few, method="dropout")], said.append)
    assert said == lines


def test_every_command_passes_the_warnings_on(tmp_path: Path, capsys, monkeypatch, tiny, listener) -> None:
    monkeypatch.setattr(Classification, "warnings", lambda self, model, data: ["a warning"])
    settings = ["--set", *TINY, "--out", str(tmp_path)]
    for command in (["train"], ["train", "--dry-run"]):
        monkeypatch.setattr(checking, "_passed", set())
        assert main([command[0], "digits", *command[1:], "--seed", str(len(command)), *settings]) == 0
        assert capsys.readouterr().err.splitlines().count("a warning") == 1
    monkeypatch.setattr(checking, "_passed", set())
    compare(tiny, ["none", "hard"], 1, tmp_path / "study", listener)
    assert listener.lines.count("a warning") == 1


def test_one_look_at_each_kind_and_none_where_nothing_is_missing(job, listener, monkeypatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(checking, "_passed", set())
    monkeypatch.setattr(checking, "_try", lambda recipe, method, data: looks.append(method) or ())
    check_jobs([job("hard(p=0.1)"), job("hard(p=0.2)", 3), job("none"), job("hard(k=3)"), job("blur+consistency")])
    assert looks == ["hard(p=0.1)", "none", "blur+consistency"]
    execute(job("blur"))
    run_jobs([job("blur")], data_for(job().settings()).checksums, listener, Where())
    assert len(looks) == 3


def test_a_package_that_is_used_after_training_is_missed_before_it(monkeypatch, listener, tmp_path) -> None:
    """Translations are scored at the end: nobody wants to train for an hour first."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sacremoses" else found(name))
    monkeypatch.setattr(checking, "_passed", set())
    recipe = read_recipe("toy-translation", "demo", [])
    message = 'this task needs sacremoses; install it with: pip install "attentiondrop[sequences]"'
    with pytest.raises(AttentionDropError, match=re.escape(message)):
        compare(recipe, ["none"], 1, tmp_path / "study", listener)
    assert not list(tmp_path.rglob("result.json"))


def test_a_look_leaves_the_generator_as_it_was(job) -> None:
    import torch

    before = torch.get_rng_state()
    checking._passed.clear()
    check_jobs([job("dropout+hard")])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("command", ["compare", "train", "ablate"])
def test_the_command_says_it_once_and_trains_nothing(command: str, tmp_path: Path, capsys) -> None:
    assert main([command, "--set", *SWIN, "data.limit=32", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"attentiondrop {command}: model swin_tiny_patch4_window7_224 with method")
    assert "Traceback" not in error and error.count("swin_tiny") == 1
    assert not list(tmp_path.rglob("run.json"))


class OddError(Exception):
    """An error that belongs to no known family."""


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("height"),
        KeyError("name"),
        IndexError(),
        ZeroDivisionError("division by zero"),
        NotImplementedError(),
        OSError(errno.EIO, "Input/output error", "image.png"),
        RecursionError("too deep"),
        OddError("\n".join(["many lines"] * 500)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_exception_is_a_failed_run_and_the_others_go_on(job, listener, monkeypatch, error: Exception) -> None:
    real = execution._train_and_test

    def broken(one: Job, *rest):
        if one.method == "hard":
            raise error
        return real(one, *rest)

    monkeypatch.setattr(execution, "_train_and_test", broken)
    checksums = data_for(job().settings()).checksums
    results = run_jobs([job("hard"), job("none", 1)], checksums, listener, Where())
    failed = results[job("hard")]
    assert failed.status == "failed" and type(error).__name__ in failed.error
    assert "\n" not in failed.error and len(failed.error) < 500
    assert type(error).__name__ in (job("hard").folder / TRACEBACK).read_text()
    assert results[job("none", 1)].status == "finished"


def test_a_result_that_cannot_be_written_is_a_failed_run(job, monkeypatch) -> None:
    """JSON has no infinity, so an infinite likelihood cannot be recorded."""
    import dataclasses

    real = execution._train_and_test

    def infinite(*args):
        found = real(*args)
        return dataclasses.replace(found, test=found.test | {"nll": float("inf")})

    monkeypatch.setattr(execution, "_train_and_test", infinite)
    result = execute(job())
    assert result.status == "failed" and "ValueError: Out of range float" in result.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, lambda: OSError(errno.ENOSPC, "No space left")])
def test_what_ends_the_command_is_no_failed_run(job, monkeypatch, error) -> None:
    def broken(*_):
        raise error()

    monkeypatch.setattr(execution, "_train_and_test", broken)
    with pytest.raises((KeyboardInterrupt, SystemExit, OSError)):
        execute(job())
    assert not (job().folder / "result.json").exists()
