"""Every hook of a comparator, with a comparator that uses all of them and records the calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from attentiondrop.experiments.methods import COMPARATORS, Acting, Comparator
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.tasks.interface import Batch
from attentiondrop.experiments.train.loop import Training

CALLS: list[tuple] = []


class Everything(Acting):
    """Mixes images and their targets, adds a penalty, prunes the head before the last epoch and keeps it pruned."""

    def __init__(self, model, weight: float) -> None:
        self.model, self.weight, self.mask = model, weight, None

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        CALLS.append(("epoch", epoch, epochs, self.mask is not None))
        if epoch == epochs - 1 and self.mask is None:
            self.mask = self.model.head.weight.detach().abs() > self.model.head.weight.detach().abs().median()

    def begin_step(self, progress: float) -> None:
        CALLS.append(("step", progress))

    def batch(self, batch: Batch) -> Batch:
        images, labels = batch
        targets = torch.nn.functional.one_hot(labels, 10).float()
        return Batch((images + images.flip(0)) / 2, (targets + targets.flip(0)) / 2)

    def loss(self, loss):
        return loss + self.weight * self.model.head.weight.square().sum()

    @torch.no_grad()
    def end_step(self) -> None:
        if self.mask is not None:
            self.model.head.weight *= self.mask

    def state_dict(self):
        return {"mask": self.mask}

    def load_state_dict(self, state) -> None:
        self.mask = state["mask"]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    before = dict(COMPARATORS)

    @dataclass(frozen=True)
    class EverythingComparator(Comparator):
        weight: float = 0.01
        name = "everything"
        grid = {"weight": [0.01, 0.1]}

        def act(self, model) -> Acting:
            return Everything(model, self.weight)

    COMPARATORS["everything"] = EverythingComparator
    yield
    COMPARATORS.clear()
    COMPARATORS.update(before)


def pruned(path: Path) -> float:
    from safetensors.torch import load_file

    return (load_file(path)["head.weight"] == 0).float().mean().item()


def test_every_hook_takes_part_in_a_run(everything, job) -> None:
    one = job("everything+hard")
    result = execute(one)
    assert result.status == "finished"
    epochs, steps = one.settings().training.epochs, [call for call in CALLS if call[0] == "step"]
    assert [call[1:3] for call in CALLS if call[0] == "epoch"] == [(epoch, epochs) for epoch in range(epochs)]
    assert steps[0] == ("step", 0.0) and len(steps) % epochs == 0 and steps[-1][1] < 1
    assert pruned(one.folder / "last.safetensors") == 0.5
    plain = execute(job("hard"))
    assert pruned(job("hard").folder / "last.safetensors") == 0
    assert result.validation != plain.validation


def test_what_it_keeps_is_kept_over_an_interruption(everything, job, tmp_path: Path) -> None:
    from attentiondrop.experiments.tasks.registry import task_of

    recipe = job("everything").settings()
    data = task_of(job().recipe).load_data(recipe.data)

    def training() -> Training:
        return Training(recipe, read_method("everything"), 0, data, tmp_path)

    class Killed(Exception):
        pass

    def kill(epoch) -> None:
        raise Killed

    with pytest.raises(Killed):
        training().run(kill)
    resumed = training()
    assert resumed.resume() == 1
    resumed.applied.acting["everything"].mask = torch.zeros_like(resumed.plain.head.weight)
    resumed._save()
    again = training()
    again.resume()
    assert again.applied.acting["everything"].mask.sum() == 0
    again.run(lambda epoch: None)
    assert CALLS[-1][0] == "step" and ("epoch", 1, recipe.training.epochs, True) in CALLS
    assert pruned(tmp_path / "last.safetensors") == 1.0


def test_its_grid_is_found(everything) -> None:
    assert candidates("everything(weight=0.1)", 3, 0) == ["everything(weight=0.1)"]
    assert read_method("blur+everything").text == "everything(weight=0.01)+blur(sigma_max=0.5)"
