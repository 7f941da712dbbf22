"""Captured steps. On a CPU a tape of operations stands for the CUDA graph: what is frozen in one is frozen in both."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attentiondrop import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods import COMPARATORS, Acting, Comparator
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.interface import Batch
from attentiondrop.experiments.train import captured_step, loop
from attentiondrop.experiments.train.epoch_log import LAST
from attentiondrop.experiments.train.loop import Training

from ..conftest import TINY
from .op_tape import TapeRecorder

#: A power of two, so that the learning rate is the same number in a float and in a float32 tensor.
CHANGES = [*TINY, "data.limit=32", f"training.learning_rate={2.0**-8}"]


@pytest.fixture(autouse=True)
def exact_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))


class Captured(Training):
    """A training on the CPU that thinks it could be captured."""

    tape: TapeRecorder

    def _why_not_capture(self) -> str | None:
        return self.applied.uncapturable()

    def _recorder(self) -> TapeRecorder:
        self.tape = TapeRecorder()
        return self.tape


def training(
    folder: Path, method: str = "none", *changes: str, captured: bool, say: Callable[[str], None] = lambda line: None
) -> Training:
    folder.mkdir(exist_ok=True)
    recipe = read_recipe("digits", "demo", [*CHANGES, *changes])
    return (Captured if captured else Training)(recipe, read_method(method), 0, load_data(recipe.data), folder, say)


def states(found: Training) -> dict[str, torch.Tensor]:
    """Weights, their average, and the state of the optimiser."""
    values = {f"model {name}": tensor for name, tensor in found.plain.state_dict().items()}
    if found.ema is not None:
        values |= {f"average {name}": tensor for name, tensor in found.ema.state_dict().items()}
    for index, state in found.optimizer.state_dict()["state"].items():
        values |= {f"optimiser {index} {name}": tensor for name, tensor in state.items()}
    return {name: tensor.clone() for name, tensor in values.items()}


def check_equal(one: Training, other: Training) -> None:
    mine, theirs = states(one), states(other)
    assert mine.keys() == theirs.keys()
    differing = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not differing
    ours, other_rates = (found.applied.attachment for found in (one, other))
    if ours is not None and other_rates is not None:
        assert json.dumps(ours.rates()) == json.dumps(other_rates.rates())


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("none", []),
        ("none", ["training.ema=0.5", "training.clip=0.1", "training.accumulate=2"]),
        ("dropout(p=0.3)+hard(p=0.5)", ["training.precision=bfloat16"]),
        ("dropconnect(p=0.3)", []),
        ("r-drop(p=0.3)", []),
        ("hard(p=linear(start=0.0,end=0.5))", ["measure.probes=2"]),
        ("noise(sigma=heads(values=[0.1,linear(start=0.0,end=2.0)]))", []),
        ("blur(sigma_max=learnable(init=0.5,high=2.0))", []),
        ("hard(p=entropy(target=0.9))", ["measure.probes=2"]),
        ("dropkey(p=entropy(target=0.9,per=head))", []),
        ("hard(p=0.5)+consistency(weight=linear(start=0.0,end=5.0))", []),
        ("hard(p=0.5)+consistency", ["training.consistency_mode=shared"]),
        ("hard(p=0.5)+consistency", ["training.consistency_mode=sequential"]),
    ],
)
def test_captured_steps_end_where_uncaptured_ones_do(tmp_path, method: str, changes: list[str]) -> None:
    plain, captured = (training(tmp_path / str(on), method, *changes, captured=on) for on in (False, True))
    lines = [[epoch.train_loss for epoch in found.run(lambda epoch: None)] for found in (plain, captured)]
    assert captured.captured == "captured"
    taken = 2 * captured.steps
    assert captured.tape.recorded == 1 and captured.tape.replays == taken - (captured.ema is not None)
    assert lines[0] == lines[1] and all(math.isfinite(loss) for loss in lines[0])
    check_equal(plain, captured)


def test_a_captured_run_is_resumed_and_its_state_is_that_of_an_uncaptured_one(tmp_path) -> None:
    method = "hard(p=linear(start=0.0,end=0.5))+consistency(weight=linear(start=0.0,end=5.0))"
    whole = training(tmp_path / "whole", method, "training.epochs=3", captured=False)
    whole.run(lambda epoch: None)

    def stop(epoch) -> None:
        raise KeyboardInterrupt

    # Each epoch in a process of its own, so to say, and captured, uncaptured, captured.
    for done, on in enumerate((True, False, True)):
        part = training(tmp_path / "parts", method, "training.epochs=3", captured=on)
        assert part.resume() == done
        with pytest.raises(KeyboardInterrupt):
            part.run(stop)
    check_equal(whole, part)
    assert (tmp_path / "parts" / LAST).exists()


def test_trying_a_step_leaves_no_trace(tmp_path) -> None:
    found = training(tmp_path, "dropout+hard(p=entropy(target=0.9))", "training.ema=0.5", captured=True)
    found._epoch(0)  # all that is made when it is first needed is there now
    torch.manual_seed(3)
    before, rates, generator = states(found), found.applied.state_dict(), torch.get_rng_state()
    groups = [dict(group) for group in found.optimizer.param_groups]
    parts = list(found.data.train_batches(seed=0, epoch=0, batch_size=8))[:1]
    found._capturing._capture(parts, [None])
    after = states(found)
    assert all(torch.equal(before[name], after[name]) for name in before) and before.keys() == after.keys()
    assert found.applied.state_dict() == rates
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in found.plain.parameters())
    for group, was in zip(found.optimizer.param_groups, groups, strict=True):
        assert group["lr"] == was["lr"] and isinstance(group["lr"], float) and group["capturable"] is False


def test_every_replay_draws_anew(tmp_path) -> None:
    found = training(tmp_path, "hard(p=0.5)", captured=True)
    parts = list(found.data.train_batches(seed=0, epoch=0, batch_size=16))[:1]
    found.optimizer.param_groups[0]["lr"] = 0.0
    found.plain.train()
    losses = set()
    for _ in range(5):
        found.step.total.zero_()
        found._capturing(parts, [None])
        losses.add(found.step.total.item())
    assert found.tape.recorded == 1 and len(losses) == 5


def test_a_batch_of_another_shape_gets_a_graph_and_many_shapes_do_not(tmp_path) -> None:
    lines: list[str] = []
    plain, found = (training(tmp_path / str(on), "hard", captured=on, say=lines.append) for on in (False, True))
    batches = list(found.data.train_batches(seed=0, epoch=0, batch_size=16))
    sizes = [16, 16, 4, 16, 4, 3, 16, 5, 6, 7, 16]
    for one, take in ((plain, plain.step), (found, found._capturing)):
        torch.manual_seed(0)
        one.plain.train()
        for index, size in enumerate(sizes):
            images, labels = batches[index % len(batches)]
            take([Batch(images[:size], labels[:size])], [None])
    check_equal(plain, found)
    assert found.tape.recorded == captured_step.MOST_GRAPHS == 4 and found.tape.replays == len(sizes) - 2
    assert lines == ["training.capture: batches have more than 4 shapes, the others run uncaptured"]


def test_weights_of_parts_are_read_in_every_step(tmp_path) -> None:
    plain, found = (training(tmp_path / str(on), captured=on) for on in (False, True))
    batch = next(found.data.train_batches(seed=0, epoch=0, batch_size=16))
    for weight in (0.5, 2.0, 0.25):
        plain.step([batch], [weight])
        found._capturing([batch], [weight])
    assert found.tape.recorded == 1
    check_equal(plain, found)


class Reading(nn.Module):
    """Does in a forward what a graph cannot do."""

    def __init__(self, inner: nn.Module, deed: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.inner, self.deed = inner, deed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.deed(x)
        return self.inner(x)


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        (lambda x: float(x.detach().sum()), "the step reads a tensor from Python"),
        (lambda x: random.random(), "the step draws random numbers on the CPU, which a replay would repeat"),
        (lambda x: np.random.rand(), "the step draws random numbers on the CPU, which a replay would repeat"),  # noqa: NPY002
        (lambda x: torch.empty(0).index_select(0, torch.tensor(3)), "IndexError: "),
    ],
)
def test_what_cannot_be_captured_runs_as_it_is_after_a_line(tmp_path, monkeypatch, deed, why: str) -> None:
    armed = [True]

    def once(x: torch.Tensor) -> None:
        # An error of the model itself would also stop the plain step, so this one happens only while capturing.
        if why != "IndexError: " or armed.pop(0) if armed else False:
            deed(x)

    lines: list[str] = []
    plain, found = (training(tmp_path / str(on), "hard", captured=on, say=lines.append) for on in (False, True))
    found.plain.blocks[0] = Reading(found.plain.blocks[0], once)
    for one in (plain, found):
        one.run(lambda epoch: None)
    assert len(lines) == 1 and lines[0].startswith(f"training.capture: off, since {why}")
    assert found.captured.startswith(why) and found.tape.replays == 0
    assert ("(test_captured_step.py, line " in lines[0]) == (why == "IndexError: ")
    for name, tensor in plain.plain.state_dict().items():
        assert torch.equal(tensor, found.plain.state_dict()[name.replace("blocks.0.", "blocks.0.inner.")])


def test_capture_on_is_an_error_where_it_cannot_be(tmp_path) -> None:
    with pytest.raises(ArgumentError, match=r"training\.capture: expected a step that can be captured: it needs CUDA"):
        training(tmp_path, "none", "training.capture=on", captured=False)
    found = training(tmp_path, "none", "training.capture=on", captured=True)
    found.plain.blocks[0] = Reading(found.plain.blocks[0], lambda x: float(x.detach().sum()))
    with pytest.raises(ArgumentError, match=r"training\.capture: expected .*: the step reads a tensor from Python"):
        found.run(lambda epoch: None)


def test_off_is_off(tmp_path) -> None:
    found = training(tmp_path, "none", "training.capture=off", captured=True)
    found.run(lambda epoch: None)
    assert found.captured == "training.capture is off" and not hasattr(found, "tape")


class Mixing(Acting):
    def batch(self, batch: Batch) -> Batch:
        return Batch((batch.inputs + batch.inputs.flip(0)) / 2, batch.targets)


class Penalty(Mixing):
    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * 2


@pytest.fixture
def comparators():
    before = dict(COMPARATORS)

    @dataclass(frozen=True)
    class MixingComparator(Comparator):
        name = "mixing"

        def act(self, model) -> Acting:
            return Mixing()

    @dataclass(frozen=True)
    class PenaltyComparator(Comparator):
        name = "penalty"

        def act(self, model) -> Acting:
            return Penalty()

    yield
    COMPARATORS.clear()
    COMPARATORS.update(before)


def test_a_comparator_that_acts_within_a_step_is_not_captured(tmp_path, comparators) -> None:
    plain, found = (training(tmp_path / str(on), "mixing", captured=on) for on in (False, True))
    for one in (plain, found):
        one.run(lambda epoch: None)
    assert found.captured == "captured"
    check_equal(plain, found)
    why = training(tmp_path / "penalty", "penalty", captured=True).captured
    assert why == "penalty acts on the steps in Python (loss)"


def test_graphs_are_captured_again_when_a_tensor_was_replaced(tmp_path) -> None:
    plain, found = (
        training(tmp_path / str(on), "hard(p=linear(start=0.0,end=0.5))", captured=on) for on in (False, True)
    )
    for one in (plain, found):
        one._epoch(0)
        for site in one.applied.attachment.sites:
            values = site.driven.values[0]
            values["p"] = values["p"].clone()
        one._epoch(1)
    assert found.tape.recorded == 2
    check_equal(plain, found)
