"""Attacks with a weakness: a small model is attacked to the end, and the table is what its attacks give."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attentiondrop.evaluation.attacks import attackable
from attentiondrop.experiments.runs.execute import execute

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "weak_attacks.py"


@pytest.fixture(scope="module")
def program() -> dict:
    return runpy.run_path(str(PROGRAM))


@pytest.fixture
def mine(program):
    """A linear model that is right on all images, with normalised inputs and dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 4 * 4, 3))
    images = 0.2 + 0.6 * torch.rand(40, 3, 4, 4)
    deviation = torch.tensor([0.5, 0.25, 0.2]).view(1, 3, 1, 1)

    def normalise(x):
        return (x - 0.5) / deviation

    labels = model.eval()(normalise(images)).argmax(-1)
    with attackable(model, normalise) as plain:
        yield program["Target"](plain, plain, images, labels, deviation)


def test_no_attack_leaves_its_ball(program, mine) -> None:
    for variant in program["variants"](5):
        moved = (variant.make(mine) - mine.images).abs().amax()
        assert moved <= program["EPSILON"] + 1e-6, variant.name


def test_units(program, mine) -> None:
    """Epsilon in normalised units is that many standard deviations."""
    moved = (program["normalised"](5)(mine) - mine.images).abs().amax((0, 2, 3))
    torch.testing.assert_close(moved, program["EPSILON"] * mine.scale.flatten())
    assert program["simple"](1.0, 0.01, 3)(mine).sub(mine.images).abs().amax().item() == pytest.approx(0.03)


def test_the_strongest_attack_is_the_correct_one(program, mine) -> None:
    def left(make) -> float:
        return program["accuracy"](mine.plain, make(mine), mine.labels)

    strong = left(program["correct"](program["EPSILON"], 20))
    assert strong < 1
    assert all(left(variant.make) >= strong for variant in program["variants"](20))


@pytest.mark.parametrize("wanted", [0.5, 0.1])
def test_the_epsilon_that_leaves_an_accuracy(program, mine, wanted) -> None:
    epsilon = program["matching_epsilon"](mine, wanted, 20)
    found = [program["correct"](epsilon * factor, 20)(mine) for factor in (0.97, 1.03)]
    above, below = (program["accuracy"](mine.plain, images, mine.labels) for images in found)
    assert above >= wanted >= below and above - below < 0.2


def test_saturation(program) -> None:
    """In 16 bits, a model that is very sure has no gradient."""
    logits = torch.tensor([[30.0, 0.0], [1.0, 0.0]], requires_grad=True)
    program["rounded_likelihood"](logits, torch.tensor([0, 0])).sum().backward()
    assert logits.grad is not None and not logits.grad[0].any() and logits.grad[1].all()


def test_runs_of_the_command(job, tmp_path, monkeypatch, capsys) -> None:
    jobs = [job("none"), job("dropout(p=0.2)")]
    assert all(execute(one).error is None for one in jobs)
    folders = [str(one.folder) for one in jobs]
    out = tmp_path / "out"
    command = ["weak_attacks.py", *folders, "--device", "cpu", "--examples", "30", "--steps", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert end.value.code == 0
    (table,) = out.glob("*.csv")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"none, seed 0", "dropout(p=0.2), seed 0"} and len(rows) == 2 * 15
    assert "at an epsilon of" in capsys.readouterr().out
