"""`EntropyTarget`: the controller reaches what it is asked for, where the rate can reach it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from peaked import Peaked

import attentiondrop as ad
from attentiondrop.torch import attach, detach
from attentiondrop.torch.rates.entropy_controller import Controller


def run(spec: ad.Spec, steps: int = 300, measured: int = 150) -> Any:
    torch.manual_seed(0)
    model = Peaked()
    attachment = attach(model, spec)
    for _ in range(steps):
        model(torch.randn(4, 32, 16))
    attachment.watch(rows=32, samples=4)
    for _ in range(measured):
        model(torch.randn(4, 32, 16))
    return attachment


def hard(rule: Any) -> ad.Spec:
    return ad.HardMasking(p=rule(0.36, high=0.5), k=3)


def blur(rule: Any) -> ad.Spec:
    return ad.BlurSmoothing(rule(0.45, high=2.0), sampling="sample")


def blur_both(rule: Any) -> ad.Spec:
    return ad.BlurSmoothing(rule(0.45, high=2.0), axes="both", sampling="sample")


@pytest.mark.parametrize(
    "make, per",
    [
        (hard, "layer"),
        (hard, "head"),
        (blur, "head"),
        (blur_both, "layer"),
        pytest.param(blur, "layer", marks=pytest.mark.slow),
        pytest.param(blur_both, "head", marks=pytest.mark.slow),
    ],
)
def test_the_target_is_reached(make: Any, per: str) -> None:
    def rule(target: float, high: float) -> ad.EntropyTarget:
        return ad.EntropyTarget(target, high=high, speed=0.1, per=per)

    spec = make(rule)
    (target,) = [schedule.target for schedule in spec.scheduled().values()]
    attachment = run(spec)
    stats = attachment.stats()["attention"]
    before, after = stats.evenness_before, stats.evenness_after
    assert max(before) < target  # peaked at first
    found = [sum(after) / 2] if per == "layer" else after
    assert found == pytest.approx([target] * len(found), abs=0.03)
    rates = attachment.rates()["attention"]
    assert len(rates) == 1
    if per == "head":
        # The head that is more peaked gets more.
        (values,) = rates.values()
        assert values[0] > values[1]


def test_a_flat_model_is_left_alone() -> None:
    attachment = run(
        ad.HardMasking(p=ad.EntropyTarget(0.05, high=0.5, start=0.4, speed=0.5), k=3), steps=60, measured=1
    )
    assert attachment.rates() == {"attention": {"hard.p": 0.0}}


@pytest.mark.parametrize("per", ["layer", "head"])
def test_nothing_moves_before_something_can_be_measured(per: Any) -> None:
    """Rows of one key have no entropy. What follows must find a rate that is a number."""
    rule = ad.EntropyTarget(0.5, start=0.2, speed=0.5, per=per)
    values = {"p": torch.tensor(0.2)}
    controller = Controller(rule, values, 0, "p")
    controller.update(torch.full((2,), torch.nan))
    assert values["p"].unique().tolist() == [pytest.approx(0.2)]
    controller.update(torch.tensor([0.4, torch.nan]))
    # The first entropy moves both heads, or its own one.
    moved = (values["p"] - 0.2).abs() > 1e-6
    assert values["p"].isfinite().all() and moved.tolist() == (True if per == "layer" else [True, False])


def test_the_speed_is_a_share_of_the_range_in_a_call() -> None:
    rule, values = ad.EntropyTarget(0.7, low=0.1, high=0.5, start=0.2, speed=0.5), {"p": torch.tensor(0.2)}
    Controller(rule, values, 0, "p").update(torch.tensor([0.5, 0.7]))
    assert values["p"].item() == pytest.approx(0.2 + 0.5 * (0.5 - 0.1) * (0.7 - 0.6))


def test_a_checkpoint_goes_on_at_the_same_rate() -> None:
    spec = ad.HardMasking(p=ad.EntropyTarget(0.5, speed=0.3, per="head"), k=3)
    attachment = run(spec, steps=20, measured=1)
    again = attach(Peaked(), spec)
    again.load_state_dict(attachment.state_dict())
    assert again.rates() == attachment.rates()
    again.set_progress(0.5)
    assert again.rates() == attachment.rates()
    with pytest.raises(ad.AttentionDropError, match="state: expected the state of an attachment with the same specs"):
        attach(Peaked(), ad.HardMasking()).load_state_dict(attachment.state_dict())


@pytest.mark.parametrize("per", ["layer", "head"])
def test_after_loading_rates_move_as_they_did(per: Any) -> None:
    """Into a new model, and back into the one that has gone on: rates and running means are those of the state."""
    spec = ad.HardMasking(p=ad.EntropyTarget(0.5, speed=0.3, per=per), k=3)

    def moved(model: Peaked, attachment: Any) -> Any:
        torch.manual_seed(3)
        for _ in range(3):
            model(torch.randn(4, 32, 16))
        return attachment.rates()

    attachment = attach(model := Peaked(), spec)
    points = [(attachment.state_dict(), moved(model, attachment)) for _ in range(2)]
    assert points[0][1] != points[1][1]
    for state, expected in points:
        again = attach(other := Peaked(), spec)
        again.load_state_dict(state)
        assert moved(other, again) == expected
        attachment.load_state_dict(state)
        assert moved(model, attachment) == expected


def test_the_state_of_other_specs_is_refused() -> None:
    specs = {
        "plain": ad.GaussianNoise(0.1),
        "adaptive": ad.GaussianNoise(ad.EntropyTarget(0.5)),
        "learned": ad.GaussianNoise(ad.Learnable(0.1)),
    }
    for one, other in itertools.permutations(specs, 2):
        state = attach(Peaked(), specs[one]).state_dict()
        with pytest.raises(ad.AttentionDropError, match="state: expected the state of an attachment with the same"):
            attach(Peaked(), specs[other]).load_state_dict(state)


@pytest.mark.no_cover
def test_compiled() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Peaked()
    attachment = attach(model, ad.HardMasking(p=ad.EntropyTarget(0.36, speed=0.3), k=3))
    compiled = torch.compile(model, backend=(counter := CompileCounter()), fullgraph=True)
    for _ in range(30):
        compiled(torch.randn(4, 32, 16))
    compiled_once = counter.frame_count
    assert compiled_once <= 3
    (rate,) = attachment.rates()["attention"].values()
    assert 0.05 < rate < 0.49
    # Code that read the numbers of a rule would be compiled again for another target.
    detach(model)
    attach(model, ad.HardMasking(p=ad.EntropyTarget(0.6, speed=0.2), k=3))
    for _ in range(3):
        compiled(torch.randn(4, 32, 16))
    assert counter.frame_count == compiled_once


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ad.EntropyTarget(1.5), r"target: expected a number in \[0, 1\], received 1.5"),
        (lambda: ad.EntropyTarget(0.5, low=0.5), "low: expected less than high=0.5, received 0.5"),
        (lambda: ad.EntropyTarget(0.5, start=0.9), r"start: expected a number in \[0, 0.5\], received 0.9"),
        (lambda: ad.EntropyTarget(0.5, low=ad.schedules.Linear(0, 0.1)), "low: expected numbers as limits"),
        (lambda: ad.HardMasking(p=ad.EntropyTarget(0.5, high=2.0)), r"p: expected a number in \[0, 1\], received 2.0"),
    ],
)
def test_bad_targets(make: Any, message: str) -> None:
    with pytest.raises(ad.AttentionDropError, match=message):
        make()


def test_texts() -> None:
    spec = ad.BlurSmoothing(ad.EntropyTarget(0.7, high=2.0, per="head"))
    assert ad.parse(str(spec)) == spec and ad.from_dict(spec.to_dict()) == spec
