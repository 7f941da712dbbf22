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
