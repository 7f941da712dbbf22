"""Training: paired seeds, determinism, the schedule, what the metrics mean."""

from __future__ import annotations

import math

import pytest
import torch

from attentiondrop.experiments import train as training
from attentiondrop.experiments.data import digits
from attentiondrop.experiments.data.dataset import Dataset
from attentiondrop.experiments.evaluate import evaluate
from attentiondrop.experiments.methods import read_method
from attentiondrop.experiments.recipe import Recipe
from attentiondrop.experiments.run import run

METHODS = ["none", "dropout", "hard", "blur", "dropout+hard"]


def _watched(text: str, seed: int, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[list[int]]]:
    """The weights that a run starts from and the batches that it sees, taken from the run itself."""
    seen: dict[str, torch.Tensor] = {}
    order: list[list[int]] = []
    build, batches = training.initial_model, training.batch_order

    def initial_model(*args):
        model = build(*args)
        seen.update({name: value.clone() for name, value in model.state_dict().items()})
        return model

    def batch_order(*args):
        for epoch in batches(*args):
            order.extend(batch.tolist() for batch in epoch)
            yield epoch

    with monkeypatch.context() as patch:
        patch.setattr(training, "initial_model", initial_model)
        patch.setattr(training, "batch_order", batch_order)
        training.train(read_method(text), seed, recipe, digits.load(recipe.samples))
    return seen, order


def test_paired_seeds_give_every_method_the_same_weights_and_batches(
    tiny: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, order = _watched("none", 3, tiny, monkeypatch)
    assert sorted(index for batch in order for index in batch) == list(range(48))
    for text in METHODS[1:]:
        # What the global generator went through before must not matter.
        torch.rand(7)
        other_weights, other_order = _watched(text, 3, tiny, monkeypatch)
        assert other_order == order
        assert weights.keys() == other_weights.keys()
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    other_weights, other_order = _watched("none", 4, tiny, monkeypatch)
    assert other_order != order
    assert not torch.equal(weights["pos_embed"], other_weights["pos_embed"])


@pytest.mark.parametrize("text", METHODS)
def test_the_same_seed_gives_the_same_numbers(text: str, tiny: Recipe) -> None:
    data = digits.load(tiny.samples)
    first, second = (run(read_method(text), 1, tiny, data, lambda done: None) for _ in range(2))
    assert first.metrics == second.metrics
    assert first.train_loss == second.train_loss
    assert first.status == "finished"


def test_methods_do_something_in_training(tiny: Recipe) -> None:
    data = digits.load(tiny.samples)
    losses = [training.train(read_method(text), 1, tiny, data).losses[0] for text in METHODS]
    assert len(set(losses)) == len(METHODS)


def test_training_leaves_the_global_generator_alone(tiny: Recipe) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    training.train(read_method("dropout"), 0, tiny, digits.load(tiny.samples))
    assert torch.equal(torch.rand(3), expected)


def test_the_schedule_rises_then_falls_to_zero() -> None:
    factors = [training.learning_rate_factor(step, 100, 0.1) for step in range(101)]
    assert factors[0] == 0.1
    assert factors[9] == factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0.0, abs=1e-12)
    assert [training.learning_rate_factor(step, 1, 1.0) for step in (0, 1)] == [1.0, 1.0]


def test_a_loss_that_is_no_number_ends_the_run_as_diverged(tiny: Recipe) -> None:
    data = digits.load(tiny.samples)
    broken = Dataset(data.train_images * math.nan, data.train_labels, data.test_images, data.test_labels, 10, "")
    epochs: list[int] = []
    result = run(read_method("none"), 0, Recipe(epochs=5, samples=48), broken, epochs.append)
    assert (result.status, result.metrics, result.train_loss, epochs) == ("diverged", None, [None], [1])


class Fixed(torch.nn.Module):
    """Always class 0 with probability 0.7."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        row = torch.tensor([0.7] + [0.3 / 9] * 9).log()
        return row.expand(len(images), 10)


def test_metrics_of_a_known_model() -> None:
    images, labels = torch.zeros(10, 1, 8, 8), torch.tensor([0] * 6 + [1] * 4)
    metrics = evaluate(Fixed(), Dataset(images, labels, images, labels, 10, ""))
    assert metrics.accuracy == pytest.approx(0.6)
    assert metrics.ece == pytest.approx(0.1, abs=1e-6)
    assert metrics.nll == pytest.approx(-0.6 * math.log(0.7) - 0.4 * math.log(0.3 / 9), rel=1e-6)
