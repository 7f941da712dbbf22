"""Rates that move in training stay still while a model is measured: a certificate is about one predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_vit import build, digits

import attentiondrop as ad
from attentiondrop.theory import gradient_variance, posterior_certificate, posterior_risk
from attentiondrop.theory.fitting import Schedule
from attentiondrop.theory.gradients import PairedGradients
from attentiondrop.theory.posterior_risk import PosteriorSettings
from attentiondrop.theory.stochastic import RandomisedPredictor, sites_of
from attentiondrop.torch import attach

ADAPTIVE = ad.DropKey(ad.EntropyTarget(0.99, high=0.5, start=0.1, speed=0.5))
IMPORTANT = ad.HeadMask(1, choice="important")


def moving(model: torch.nn.Module) -> list[list[float]]:
    """Everything that moves by itself in training."""
    found = []
    for site in sites_of(model):
        assert site.driven is not None
        found += [value.tolist() for fields in site.driven.values.values() for value in fields.values()]
        found += [kept.room[:2].tolist() for kept in site.driven.states.values()]
    return found


@pytest.mark.parametrize("spec", [ADAPTIVE, IMPORTANT], ids=str)
def test_a_predictor_does_not_change_by_predicting(spec: ad.Spec) -> None:
    model = build()
    attach(model, spec)
    images, _ = digits()
    predictor = RandomisedPredictor(model)
    before = moving(predictor.model)
    predictor(images[:8])
    assert moving(predictor.model) == before and predictor.vectorised


@pytest.mark.parametrize("spec", [ADAPTIVE, IMPORTANT], ids=str)
@pytest.mark.parametrize("batch_size", [None, 8])
def test_gradients_do_not_move_what_they_are_measured_with(spec: ad.Spec, batch_size: int | None) -> None:
    model = build()
    attach(model, spec)
    images, labels = digits()
    loss = torch.nn.functional.cross_entropy
    gradients = PairedGradients(model, images[:32], labels[:32], loss, batch_size, None, 2, 0)
    before = moving(gradients.perturbed)
    for _ in gradients:
        pass
    assert moving(gradients.perturbed) == before


def test_the_gradient_variance_of_masked_important_heads() -> None:
    model = build()
    attach(model, IMPORTANT)
    images, labels = digits()
    assert np.isfinite(gradient_variance(model, images[:16], labels[:16], batch_size=4).total.ratio)


def test_the_prior_does_not_see_the_other_examples_through_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    attach(model, ADAPTIVE)
    images, labels = digits()
    seen: list[Any] = []
    fit = posterior_risk.fit_posterior

    def watched(fixed: torch.nn.Module, *args: Any) -> None:
        seen.append(moving(fixed))
        fit(fixed, *args)
        seen.append(moving(fixed))

    monkeypatch.setattr(posterior_risk, "fit_posterior", watched)
    short = Schedule(epochs=1, batch_size=16)
    posterior_certificate(
        model, images[:64], labels[:64], settings=PosteriorSettings(prior=short, posterior=short, draws=2)
    )
    assert seen[0] == seen[1] == moving(model) != [[0.1], [0.1]]
