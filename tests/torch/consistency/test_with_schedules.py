"""The consistency loss on attachments with schedules and monitors."""

from __future__ import annotations

import pytest
import torch
from consistency_models import BATCH, build, floats

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss, views


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_rates_and_weight_follow_the_progress(mode: str) -> None:
    model, x = build("encoder"), floats(BATCH, 6, 16)
    spec = ad.Compose([ad.DropKey(ad.schedules.Linear(0.0, 0.5)), ad.Consistency(ad.schedules.Linear(0.0, 2.0))])
    attachment = attach(model, {"encoder.layers.3.*": spec})
    result = consistency_loss(model, x, torch.mean, mode=mode)
    assert result.divergence.abs() < 1e-12 and torch.equal(result.loss, result.task)
    attachment.set_progress(0.5)
    result = consistency_loss(model, x, torch.mean, mode=mode)
    assert result.divergence > 0 and torch.equal(result.loss, result.task + 1.0 * result.divergence)


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
@pytest.mark.parametrize("spec", ["blur(sigma_max=2.0)", "hard(p=entropy(target=0.9),k=3)"])
def test_every_call_is_measured(spec: str, mode: str) -> None:
    """With rates that adapt, each view is a call of its own: how fast they adapt must not depend on the mode."""
    model, x = build("encoder"), floats(BATCH, 6, 16)
    attachment = attach(model, {"encoder.layers.3.*": spec})
    attachment.watch()
    views(model, x, 3, mode)
    (stats,) = attachment.stats().values()
    # Otherwise, stacked views share one call, and the first samples of a call are measured.
    assert stats.calls == (1 if spec.startswith("blur") and mode != "sequential" else 3)


def test_a_scheduled_weight_needs_somebody_who_knows_the_progress() -> None:
    """Without a site it would stay at its first value, often 0: R-Drop would silently not happen."""
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    with pytest.raises(ad.AttentionDropError, match="a weight that is a number where nothing is attached"):
        consistency_loss(model, torch.randn(2, 4), torch.mean, ad.Consistency(ad.schedules.Warmup(1.0)))


def test_a_scheduled_weight_has_the_progress_of_its_own_attachment() -> None:
    """Nobody tells it to an attachment without schedules, and perhaps not to another one."""
    model, x = build("encoder"), floats(BATCH, 6, 16)
    attach(model, {"encoder.layers.0.*": "hard(p=0.5,k=3)"})
    attach(model, {"encoder.layers.1.*": ad.DropKey(ad.schedules.Linear(0.1, 0.3))})  # nobody told it, either
    weight = ad.Consistency(weight=ad.schedules.Linear(0.0, 2.0))
    second = attach(model, {"encoder.layers.3.*": ad.Compose([ad.DropKey(0.3), weight])})
    second.set_progress(0.5)
    for given in (None, weight):
        result = consistency_loss(model, x, torch.mean, given)
        assert result.divergence > 0 and torch.equal(result.loss, result.task + 1.0 * result.divergence)


@pytest.mark.parametrize(
    "other", ["hard(p=heads([0.1,0.2,0.1,0.2]),k=3)", "hard(p=constant(0.1),k=3)", "blur", "hard(p=entropy(0.5),k=3)"]
)
@pytest.mark.parametrize("rate", ["0.1", "linear(start=0.1,end=0.2)"])
def test_rates_that_do_not_depend_on_the_progress_have_no_say(rate: str, other: str) -> None:
    model, x = build("encoder"), floats(BATCH, 6, 16)
    attach(model, {"encoder.layers.0.*": f"hard(p={rate},k=3)"}).set_progress(0.5)
    attach(model, {"encoder.layers.1.*": other})
    result = consistency_loss(model, x, torch.mean, ad.Consistency(weight=ad.schedules.Linear(0.0, 2.0)))
    assert result.divergence > 0 and torch.equal(result.loss, result.task + 1.0 * result.divergence)


def test_progress_that_is_told_in_part_is_refused() -> None:
    """Where the weight belongs to no attachment: those with schedules must agree."""
    model, x = build("encoder"), floats(BATCH, 6, 16)
    rising = ad.Compose([ad.DropKey(ad.schedules.Linear(0.1, 0.5)), ad.GaussianNoise(0.1)])
    weight = ad.Consistency(weight=ad.schedules.Linear(0.0, 2.0))
    attach(model, {"encoder.layers.0.*": "hard(p=0.5,k=3)"})
    first, second = (attach(model, {f"encoder.layers.{layer}.*": rising}) for layer in (1, 2))
    first.set_progress(0.5)
    with pytest.raises(ad.ArgumentError, match=r"received 0\.0 and 0\.5: call set_progress on every attachment"):
        consistency_loss(model, x, torch.mean, weight)
    second.set_progress(0.5)
    result = consistency_loss(model, x, torch.mean, weight)
    assert torch.equal(result.loss, result.task + 1.0 * result.divergence)
