"""Samples of a model that is trained later: nothing that `torch.inference_mode` leaves behind stops the training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.rates.lasting import lasting

SPECS = [
    ad.BlurSmoothing(ad.EntropyTarget(0.3, start=1.0, high=2.0)),
    ad.BlurSmoothing(ad.EntropyTarget(0.3, start=1.0, high=2.0, per="head")),
    ad.HeadMask(1, choice="important"),
    ad.BlurSmoothing(ad.Learnable(0.5, high=2.0)),
    ad.DropKey(ad.schedules.PerHead([0.1, 0.2, ad.schedules.Linear(0.0, 0.4), 0.3])),
]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec)[:40])
def test_sampled_first_and_trained_later(spec: ad.Spec, watched: bool) -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    attachment = attach(model, spec)
    if watched:
        attachment.watch()
    x = torch.randn(2, 7, 16)
    for _ in range(2):
        with torch.inference_mode():
            attachment.set_progress(0.25)
            model(x)
        attachment.set_progress(0.5)
        model(x).square().mean().backward()
    assert all(rate.grad is not None for rate in attachment.parameters())
    if watched:
        assert attachment.stats()["self_attn"].calls == 4


def test_elsewhere_nothing_changes() -> None:
    """`torch.inference_mode(False)` would switch gradients on."""
    with torch.no_grad(), lasting():
        assert not torch.is_grad_enabled()
    with torch.inference_mode(), lasting():
        assert not torch.ones(1).is_inference()


def test_a_compiler_can_trace_it() -> None:
    def copy(x: torch.Tensor) -> torch.Tensor:
        with lasting():
            return x.clone()

    assert torch.compile(copy, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [1.0, 1.0]
