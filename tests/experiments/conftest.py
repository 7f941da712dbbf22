"""A study that trains in a second."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.store import Result
from attentiondrop.experiments.train.epoch_log import Epoch, write_epoch

TINY = [
    "data.limit=48",
    "model.arguments={depth: 2, embed_dim: 16, num_heads: 2}",
    "training.epochs=2",
    "training.batch_size=16",
    "training.device=cpu",
    "measure.probes=0",
]


class Silent:
    """A listener that stores all messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.planned: list[int] = []
        self.done: list[float] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, total: int) -> None:
        self.planned.append(total)

    def progress(self, label: str, done: float) -> None:
        self.done.append(done)


@pytest.fixture
def listener() -> Silent:
    return Silent()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`benchmarks/evidence.py`."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield importlib.import_module("evidence")
    for name in ("evidence", "evidence_queue", "choice"):
        sys.modules.pop(name, None)


@pytest.fixture
def tiny() -> Recipe:
    return read_recipe("digits", "demo", TINY)


@pytest.fixture
def job(tiny: Recipe, tmp_path: Path):
    """Makes jobs of the tiny recipe, with changes."""

    def make(method: str = "none", seed: int = 0, *changes: str, **fields) -> Job:
        recipe = read_recipe("digits", "demo", [*TINY, *changes]) if changes else tiny
        return Job(recipe.to_dict(), method, seed, str(tmp_path), **fields)

    return make


def scored(
    accuracy: float, nll: float = 0.0, ece: float = 0.0, brier: float = 0.0, top5: float | None = None
) -> dict[str, float]:
    """The metrics of image classification, as in a record."""
    found = {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": brier}
    return found if top5 is None else found | {"top5": top5}


def write_epochs(folder: Path, last: int, first: int = 1) -> None:
    """The lines of epochs that a finished run must have, without anything to see in them."""
    for epoch in range(first, last + 1):
        write_epoch(folder, Epoch(epoch, 0.1, 1.0, None, 1.0, 10))


def scores_of(method: str, part: str) -> dict[str, float]:
    rate = float(method.partition("p=")[2][:3].strip(",)") or 0)
    return scored(accuracy=0.5 + (rate if part == "validation" else -rate) / 10, nll=1.0, ece=0.1, brier=0.2)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replaces training by made-up results, and lists the runs that were asked for.

    Validation accuracy grows with p and test accuracy falls, so a choice on the wrong part gives another method.
    """
    from attentiondrop.experiments.runs import execute as execution

    runs: list[tuple[str, int]] = []

    def train(job, data, on_epoch, say) -> Result:
        runs.append((job.method, job.seed))
        assert ("test" in data.counts) == job.final
        on_epoch(job.settings().training.epochs)
        write_epochs(job.folder, 2)
        scores = {part: scores_of(job.method, part) for part in ("validation", "test") if part in data.counts}
        return Result("finished", 1.0, 2, best_epoch=2, scored=job.scored(data.checksums), **scores)

    monkeypatch.setattr(execution, "_train_and_test", train)
    return runs


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch):
    """Counts what is compiled, and compiles nothing; other tests of the process have left no code.

    `asked` has the names of the functions.
    """
    from torch._dynamo.testing import CompileCounter

    from attentiondrop.torch.consistency.divergence import compiled_divergence

    found, compile_function = CompileCounter(), torch.compile
    found.asked = []

    def counted(function, **how):
        found.asked.append(function.__name__)
        return compile_function(function, **how, backend=found)

    monkeypatch.setattr(torch, "compile", counted)
    limit = torch._dynamo.config.recompile_limit
    torch.compiler.reset()
    compiled_divergence.cache_clear()
    yield found
    torch._dynamo.config.recompile_limit = limit
    torch.compiler.reset()
    compiled_divergence.cache_clear()


@pytest.fixture
def claims(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The page of claims over results that a test publishes."""
    found = docs_module("claims")
    monkeypatch.setattr(found.studies, "RESULTS", tmp_path)
    searched, found.SCARCE = found.SCARCE, dataclasses.replace(found.SCARCE, searched=None)  # a test is about it
    assert searched.searched == found.studies.SEARCHED
    found.HEADLINES["H3"] = (found.SCARCE, *found.HEADLINES["H3"][1:])
    return found
