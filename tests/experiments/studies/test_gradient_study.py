"""The gradient variance of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from attentiondrop import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.studies import gradient_study
from attentiondrop.experiments.studies.gradient_study import checkpoints, variance_of_run
from attentiondrop.experiments.train.loop import Training
from attentiondrop.theory.curve import draw
from attentiondrop.torch.attach.sites import site_of

SETTINGS = [
    "data.limit=96",
    "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}",
    "training={epochs: 2, batch_size: 16, device: cpu, select: last}",
    "measure={probes: 2, batches: 2}",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    job = Job(read_recipe("digits", "demo", SETTINGS).to_dict(), "hard(p=0.2,k=3)", 0, str(out))
    execute(job)
    return job.folder


def test_every_checkpoint_and_the_beginning(run: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    found = variance_of_run(run, examples=40, on_progress=lambda label, share: heard.append(share))
    assert heard == sorted(heard) and heard[-1] == 1.0
    epochs = [epoch for epoch, _ in found.checkpoints]
    assert epochs[0] == 0 and epochs[-1] == 2 and [epoch for epoch, _ in found.measured] == [1, 2]
    assert found.checkpoints[0][1].units == 40 and found.checkpoints[0][1].batch_size == 16
    # Each has its own weights: those that the seed gives, and those of its file.
    assert len({part.total.base for _, part in found.checkpoints}) == len(epochs)
    json.dumps(found.to_dict(), allow_nan=False)
    draw(tmp_path / "curve.png", [found.curve, found.curve._replace(measured=[], checkpoints=[])])
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_weights_of_other_epochs_are_used_where_they_were_kept(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.copy(folder / "last.safetensors", folder / "epoch1.safetensors")
    assert list(checkpoints(folder, 2, 2)) == [1, 2]
    found = variance_of_run(folder, examples=24)
    assert [epoch for epoch, _ in found.checkpoints] == [0, 1, 2]
    assert found.checkpoints[1][1].total.base == found.checkpoints[2][1].total.base
    # A run that diverged has weights of a best epoch, but does not say which.
    assert checkpoints(folder, None, 2) == {1: folder / "epoch1.safetensors", 2: folder / "last.safetensors"}
    (folder / "last.safetensors").unlink()
    assert list(checkpoints(folder, None, 2)) == [1]


@pytest.mark.parametrize(
    "method", ["hard(p=entropy(target=0.9,start=0.3),k=3)", "noise(sigma=learnable(0.5,high=2.0))"]
)
def test_rates_are_those_of_each_checkpoint(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that are learned, or adapt, end where training took them."""
    ended: list[dict[str, Any]] = []
    save = Training._save
    monkeypatch.setattr(Training, "_save", lambda self: (ended.append(self.applied.attachment.rates()), save(self)))
    job = Job(read_recipe("digits", "demo", [*SETTINGS, "training.keep_every=1"]).to_dict(), method, 0, str(tmp_path))
    execute(job)
    used: list[dict[str, Any]] = []
    measure = gradient_study.gradient_variance

    def measured(model: nn.Module, *args: Any, **options: Any) -> Any:
        sites = [site for module in model.modules() if (site := site_of(module)) is not None]
        values = [value for site in sites for fields in site.driven.values.values() for value in fields.values()]
        used.append([float(value() if callable(value) else value) for value in values])
        return measure(model, *args, **options)

    monkeypatch.setattr(gradient_study, "gradient_variance", measured)
    variance_of_run(job.folder, examples=16)
    wanted = [[rate for rates in epoch.values() for rate in rates.values()] for epoch in ended]
    assert used[1:] == [pytest.approx(rates) for rates in wanted] and used[0] != used[1] != used[2]
    for path in job.folder.glob("*_rates.safetensors"):
        path.unlink()
    with pytest.raises(ArgumentError, match=r"expected epoch1_rates\.safetensors, with the rates that the run has"):
        variance_of_run(job.folder, examples=16)


def test_examples_are_picked_from_all_of_the_training_part(run: Path) -> None:
    all_of_them = variance_of_run(run, examples=1000, draws=3)
    assert all_of_them.checkpoints[0][1].units == 96 and all_of_them.checkpoints[0][1].draws == 3
    some, others = variance_of_run(run, examples=30, seed=0), variance_of_run(run, examples=30, seed=1)
    assert some.checkpoints[0][1].total.base != others.checkpoints[0][1].total.base


@pytest.mark.parametrize("examples", [0, -1])
def test_fewer_than_one_example_is_refused(run: Path, examples: int) -> None:
    with pytest.raises(ArgumentError, match=rf"examples: expected a number >= 1, received {examples}"):
        variance_of_run(run, examples=examples)


def test_batches(run: Path) -> None:
    found = variance_of_run(run, examples=64, method="batches", batches=5).checkpoints[0][1]
    assert found.method == "batches" and found.units == 5
