"""What `update` and `set_progress` refuse, what they leave as it was then, and what goes on after them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import attentiondrop as ad
from attentiondrop import schedules as sc
from attentiondrop.torch import attach

ADAPTIVE = "hard(p=entropy(0.9,start=0.1))"


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def run(model: nn.Module) -> None:
    model(torch.randn(3, 7, 16))


def test_a_pattern_that_matches_no_site_is_an_error(model: nn.Module) -> None:
    attachment = attach(model, "hard(p=0.1)")
    wrong = {"layer.0.*": "blur", "*": "hard(p=0.2)"}
    with pytest.raises(
        ad.AttachError, match=r"pattern 'layer\.0\.\*' matches no .* there is layers\.0\.self_attn, lay"
    ):
        attachment.update(wrong)
    assert [str(site.spec) for site in attachment.sites] == ["hard(p=0.1,k=5)"] * 2
    attachment.update({name.replace("layer.", "layers."): spec for name, spec in wrong.items()})
    assert [site.spec.name for site in attachment.sites] == ["blur", "hard"]


def test_sites_that_were_left_alone_may_be_named_again(model: nn.Module) -> None:
    attachment = attach(model, {"layers.0.*": None, "*": "hard"})
    attachment.update({"layers.0.*": None, "*": "blur"})
    assert [site.spec.name for site in attachment.sites] == ["blur"]
    with pytest.raises(ad.AttachError, match=r"pattern 'layers\.0\.\*' matches no attention site"):
        attachment.update({"layers.0.*": "noise", "*": "blur"})


@pytest.mark.parametrize("spec", ["hard(p=0.5)", ADAPTIVE, "headmask(count=1,choice=important)"])
@pytest.mark.parametrize("before", ["hard(p=0.1)", ADAPTIVE])
def test_what_is_watched_stays_watched(model: nn.Module, before: str, spec: str) -> None:
    attachment = attach(model, before)
    attachment.watch(rows=3, samples=2)
    run(model)
    attachment.update("noise")
    attachment.update(spec)
    assert attachment.stats() == {}, "what was measured belongs to the old spec"
    assert [(site.monitor.rows, site.monitor.samples) for site in attachment.sites if site.monitor] == [(3, 2)] * 2
    run(model)
    run(model)
    assert [stats.calls for stats in attachment.stats().values()] == [2, 2]
    controlled = [len(site.monitor.controllers) for site in attachment.sites if site.monitor]
    assert controlled == ([1, 1] if spec == ADAPTIVE else [0, 0])
    if spec == ADAPTIVE:
        assert all(rates["hard.p"] != pytest.approx(0.1) for rates in attachment.rates().values())


@pytest.mark.parametrize("end", [False, True])
def test_what_only_adapts_does_not_become_watched(model: nn.Module, end: bool) -> None:
    attachment = attach(model, ADAPTIVE)
    if end:
        attachment.watch()
        attachment.unwatch()
    run(model)
    attachment.update("hard(p=0.5)")
    assert all(site.monitor is None for site in attachment.sites)
    with pytest.raises(ad.AttachError, match="stats: nothing is measured"):
        attachment.stats()
    attachment.update(ADAPTIVE)
    assert [len(site.monitor.controllers) for site in attachment.sites if site.monitor] == [1, 1]


class Dip(sc.Schedule):
    """Too small at one place, which it does not tell."""

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> float:
        return 0.1 if progress == 0.123 and layer == layers - 1 else 1.0 + progress

    def extremes(self) -> Any:
        yield from (0.1, 2.0)


def test_rates_that_do_not_fit_change_nothing(model: nn.Module) -> None:
    attachment = attach(model, ad.BlurSmoothing(sigma_min=0.3, sigma_max=Dip()))
    attachment.set_progress(0.5)

    def state() -> Any:
        return attachment.progress, attachment.rates(), [site.progress for site in attachment.sites]

    before = state()
    for wrong in (0.123, 7):
        with pytest.raises(ad.ArgumentError):
            attachment.set_progress(wrong)
        assert state() == before
    attachment.update("hard(p=0.2)")
    attachment.set_progress(0.123)
    with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
        attachment.update(ad.BlurSmoothing(sigma_min=0.3, sigma_max=Dip()))
    assert [str(site.spec) for site in attachment.sites] == ["hard(p=0.2,k=5)"] * 2
    run(model)


def test_a_dip_between_quarters_is_found_before_training(model: nn.Module) -> None:
    dip = ad.BlurSmoothing(sigma_min=0.3, sigma_max=sc.Piecewise([0.0, 0.1, 0.2], [1.0, 0.1, 1.0]))
    with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
        attach(model, dip)
    attachment = attach(model, "hard")
    with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
        attachment.update(dip)
    assert [site.spec.name for site in attachment.sites] == ["hard", "hard"]


@pytest.mark.parametrize("moves", [ad.EntropyTarget(0.1, 0.5, 1.0, start=0.9), ad.Learnable(0.6, low=0.5, high=2.0)])
def test_a_sigma_that_moves_stays_above_the_smallest(model: nn.Module, moves: sc.Schedule) -> None:
    attachment = attach(model, ad.BlurSmoothing(sigma_min=0.5, sigma_max=moves))
    attachment.watch()
    for rate in attachment.parameters():
        rate.data.fill_(-50.0)
    for _ in range(80):
        run(model)
    assert all(rates["blur.sigma_max"] == pytest.approx(0.5, abs=0.05) for rates in attachment.rates().values())
    assert all(sigma >= 0.5 for stats in attachment.stats().values() for sigma in stats.sigmas["blur"])
