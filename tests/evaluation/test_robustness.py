"""Accuracy under attack, and that an attack which cannot be believed says so."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch
from torch import Tensor, nn

from attentiondrop import AttentionDropError
from attentiondrop.evaluation import RobustnessReport, pgd_attack, robust_accuracy
from attentiondrop.evaluation.attacks import Attack
from attentiondrop.evaluation.soundness import Trial, _accuracy_rises


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Linear(nn.Module):
    """Two classes, told apart by the mean of the pixels: brighter or darker than 0.5."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], dim=1) * 10


class Quantised(Linear):
    """The same answers from rounded pixels: the gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * 255).round() / 255)


class Stuck(Linear):
    """A gradient that is not zero and points nowhere."""

    def forward(self, x: Tensor) -> Tensor:
        honest = super().forward(x)
        noise = (x * torch.linspace(-1, 1, x.numel()).view_as(x).roll(1)).flatten(1).sum(1, keepdim=True)
        return honest.detach() + (noise - noise.detach()) * torch.tensor([1.0, 0.0])


class Saturated(Linear):
    """So sure of itself that the cross entropy has no gradient left in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e5


class Constant(nn.Module):
    """Ignores its input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.0]).expand(len(x), 2) + 0 * x.flatten(1)[:, :2]


def pictures(count: int = 100) -> tuple[Tensor, Tensor]:
    """Means from 0.4 to 0.6: the margin of an image is how far its mean is from 0.5."""
    means = torch.linspace(0.4, 0.6, count)[:, None, None, None]
    images = means + 0.1 * (torch.rand(count, 1, 4, 4) - 0.5)
    images = images - images.mean((1, 2, 3), keepdim=True) + means
    return images, (means.flatten() > 0.5).long()


def test_accuracy_is_that_of_the_closed_form() -> None:
    images, labels = pictures()
    report = robust_accuracy(Linear(), (images, labels), epsilons=[0.03, 0.01, 0.08], steps=20)
    lead = (images.mean((1, 2, 3)) - 0.5).abs()
    assert report.epsilons == [0.0, 0.01, 0.03, 0.08]
    assert report.accuracy == [pytest.approx(float((lead > epsilon).float().mean())) for epsilon in report.epsilons]
    assert (report.norm, report.steps, report.restarts, report.examples) == ("linf", 20, 1, 100)
    assert report.sound and report.notes == []


def test_l2_too() -> None:
    images, labels = pictures()
    report = robust_accuracy(Linear(), (images, labels), epsilons=[0.16], steps=40, norm="l2")
    # 16 pixels moved equally by e / 4 move the mean by e / 4.
    lead = (images.mean((1, 2, 3)) - 0.5).abs()
    assert report.accuracy[1] == pytest.approx(float((lead > 0.04).float().mean()), abs=0.021)
    assert report.sound


def test_batches_of_any_kind_add_up() -> None:
    images, labels = pictures()
    whole = robust_accuracy(Linear(), (images, labels), epsilons=[0.03], steps=20)
    parts = list(zip(images.split(32), labels.split(32), strict=True))
    heard: list[tuple[int, int]] = []
    for batches in (parts, tuple(parts), iter(parts), [images, labels]):
        found = robust_accuracy(Linear(), batches, epsilons=[0.03], steps=20, on_batch=lambda *x: heard.append(x))
        assert found == whole
    expected = [(done, 4) for done in range(1, 5)]
    assert heard == expected + expected + [(done, 0) for done in range(1, 5)] + [(1, 1)]


def test_agrees_with_the_attack_itself() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 30), nn.GELU(), nn.Linear(30, 4))
    images = torch.rand(50, 1, 4, 4)
    labels = model(images).argmax(-1)
    report = robust_accuracy(model, (images, labels), epsilons=[0.1], generator=seeded())
    worse = pgd_attack(model, images, labels, epsilon=0.1, generator=seeded())
    assert report.accuracy == [1.0, pytest.approx(float((model(worse).argmax(-1) == labels).float().mean()))]
    assert 0 < report.accuracy[1] < 1


def test_is_determined_by_the_generator_and_draws_the_same_for_every_model() -> None:
    images, labels = pictures(20)
    first, second = seeded(), seeded()
    assert robust_accuracy(Linear(), (images, labels), generator=first) == robust_accuracy(
        Linear(), (images, labels), generator=second
    )
    state = second.get_state()
    assert torch.equal(first.get_state(), state)
    robust_accuracy(Constant(), (images, labels), generator=(third := seeded()))
    assert torch.equal(third.get_state(), state)


def test_a_report_is_plain_json_after_asdict() -> None:
    report = robust_accuracy(Linear(), pictures(10), epsilons=[0.1])
    assert RobustnessReport(**json.loads(json.dumps(dataclasses.asdict(report)))) == report


def test_zero_gradients_are_found_out() -> None:
    report = robust_accuracy(Quantised(), pictures(), epsilons=[0.03])
    assert not report.sound
    text = "\n".join(report.notes)
    assert "the mean loss does not rise over the 10 steps at epsilon 0.03" in text and 'loss="margin" may help' in text
    assert re.search(r"[1-9][\d.]* % of 100 images withstand an attack without limits \(epsilon 1\)", text)


def test_misleading_gradients_are_found_out() -> None:
    report = robust_accuracy(Stuck(), pictures(), epsilons=[0.03], loss="margin")
    assert not report.sound
    assert "may help" not in "\n".join(report.notes)


def test_saturated_gradients_are_found_out_and_the_margin_gets_through() -> None:
    masked = robust_accuracy(Saturated(), pictures(), epsilons=[0.03])
    honest = robust_accuracy(Saturated(), pictures(), epsilons=[0.03], loss="margin")
    assert not masked.sound and honest.sound
    assert honest.accuracy[1] < masked.accuracy[1]


def test_a_model_that_ignores_its_input_is_not_called_robust() -> None:
    report = robust_accuracy(Constant(), pictures())
    assert report.accuracy == [0.5, 0.5, 0.5] and not report.sound
    assert any("the model ignores its input" in note for note in report.notes)


def test_chance_must_not_be_stronger() -> None:
    class Spotted(nn.Module):
        """Wrong at half of all points, but no gradient leads there."""

        def forward(self, x: Tensor) -> Tensor:
            dots = ((x.flatten(1)[:, 0] * 1e4).floor() % 4 == 0).float()
            return torch.stack([1 - 2 * dots, 0 * dots], dim=1) + 0 * x.flatten(1)[:, :1]

    images = torch.full((100, 1, 4, 4), 0.5001)
    report = robust_accuracy(Spotted(), (images, torch.zeros(100).long()), epsilons=[0.1], generator=seeded())
    assert any(note.startswith("random points fool the model more often than the attack") for note in report.notes)


def test_accuracy_must_not_rise_with_epsilon() -> None:
    def doubt(accuracy: list[float], examples: int = 1000) -> str | None:
        return _accuracy_rises(Trial(Attack(0.2), 0.0, 1.0, [0.0, 0.1, 0.2], accuracy, examples))

    assert doubt([0.9, 0.5, 0.509]) is None
    assert doubt([0.9, 0.5, 0.55]) == "accuracy rises from 50.0 % at epsilon 0.1 to 55.0 % at epsilon 0.2"
    assert doubt([0.9, 0.5, 0.55], examples=20) is None


def test_modes_are_restored() -> None:
    model = nn.Sequential(Linear(), nn.Dropout(0.5))
    robust_accuracy(model, pictures(10), epsilons=[0.1])
    assert model.training and model[1].training


@pytest.mark.parametrize(
    ("batches", "changes", "message"),
    [
        (None, {"epsilons": 0.1}, "epsilons: expected several numbers, received 0.1"),
        (None, {"epsilons": [-0.1]}, "epsilons: expected a number >= 0, received -0.1"),
        (None, {"epsilons": [0.0]}, "epsilons: expected at least one number > 0, received [0.0]"),
        (None, {"steps": 0}, "steps: expected a number >= 1, received 0"),
        ([], {}, "batches: expected at least one pair (images, labels), received none"),
        (torch.zeros(3), {}, "batches: expected a pair (images, labels) or several of them, received 'Tensor'"),
        (3, {}, "batches: expected a pair (images, labels) or several of them, received 'int'"),
        ([(torch.zeros(2, 3) - 1, torch.zeros(2).long())], {}, "images: expected pixels in [0, 1]"),
    ],
)
def test_bad_input_is_named(batches, changes: dict[str, object], message: str) -> None:
    with pytest.raises(AttentionDropError, match=re.escape(message)):
        robust_accuracy(Linear(), pictures(4) if batches is None else batches, **changes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_generator_of_the_cpu_serves_an_accelerator() -> None:
    images, labels = pictures()
    here = robust_accuracy(Linear(), (images, labels), epsilons=[0.03], generator=seeded())
    there = robust_accuracy(Linear().cuda(), (images.cuda(), labels.cuda()), epsilons=[0.03], generator=seeded())
    assert there.sound and there.accuracy == pytest.approx(here.accuracy, abs=0.02)


def test_two_batches_are_not_taken_for_images_and_labels() -> None:
    images = torch.rand(12, 1, 2, 2, generator=seeded())
    labels = (images.flatten(1).mean(1) > 0.5).long()
    whole, halves = (
        robust_accuracy(Linear(), batches, generator=seeded())
        for batches in ((images, labels), [(images[:5], labels[:5]), (images[5:], labels[5:])])
    )
    assert whole.epsilons == halves.epsilons == [0.0, 2 / 255, 8 / 255]
    assert whole.examples == halves.examples == 12 and whole.accuracy == halves.accuracy
