"""How many runs a study does at once if nobody says."""

from __future__ import annotations

import pytest
import torch

from attentiondrop.cli import recipes
from attentiondrop.cli.main import _parser
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs import worker_count
from attentiondrop.experiments.runs.pool import Where
from attentiondrop.experiments.runs.worker_count import with_workers


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with four cores, enough memory and no accelerator."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(worker_count, "_memory", lambda: 64 * 2**30)
    monkeypatch.setattr(worker_count, "device_of", lambda settings: "cpu")
    return monkeypatch


def workers(where: Where, runs: int = 21) -> int:
    recipe = read_recipe("digits", "demo", [])  # 12 epochs of 15 steps
    return with_workers(where, recipe, runs, 12 * runs).workers


def test_a_long_study_on_a_cpu_uses_all_cores(machine: pytest.MonkeyPatch) -> None:
    assert workers(Where(0)) == 4
    assert workers(Where(0), runs=12) == 4  # 2,160 steps
    assert workers(Where(0), runs=11) == 1  # 1,980 steps
    machine.setattr(torch, "get_num_threads", lambda: 100)
    assert workers(Where(0)) == 16, "as many as the memory holds"
    machine.setattr(worker_count, "_memory", lambda: 10**12)
    assert workers(Where(0)) == 21, "no more than there are runs"
    machine.setattr(worker_count, "_memory", lambda: 0)
    assert workers(Where(0)) == 1, "the system does not say how much memory there is"


def test_the_user_and_accelerators_decide_first(machine: pytest.MonkeyPatch) -> None:
    assert workers(Where(1)) == 1
    assert workers(Where(7)) == 7
    machine.setattr(worker_count, "device_of", lambda settings: "cuda")
    assert workers(Where(0)) == 1


def test_the_command_leaves_it_to_the_study() -> None:
    def asked(*arguments: str) -> Where:
        return recipes.where(_parser().parse_args(["compare", "digits", *arguments]))

    assert asked() == Where(0)
    assert asked("--workers", "1") == Where(1)
