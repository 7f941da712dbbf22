"""`sigma_min` never exceeds `sigma_max`: where they are numbers, schedules, or rates that move by themselves."""

from __future__ import annotations

from typing import Any

import pytest

import attentiondrop as ad
from attentiondrop import schedules as sc
from attentiondrop.attaching import check_over_training, check_schedules
from attentiondrop.specs.base import Spec

ENTROPY = "blur(sigma_min={},sigma_max=entropy(0.1,start=0.9,high=1.0))"


@pytest.mark.parametrize(
    "low, high, message",
    [
        (0.5, ad.EntropyTarget(0.1, start=0.9, high=1.0), "at most 0.0, the lowest that sigma_max=entropy"),
        (0.5, ad.Learnable(0.6, high=2.0), r"sigma_max=learnable\(.*\) can reach \(give that low=0.5 or more\)"),
        (0.5, ad.Learnable(0.6, low=0.4, high=2.0), "at most 0.4, .* received 0.5"),
        (sc.Linear(0.0, 0.3), ad.EntropyTarget(0.1, low=0.2), "at most 0.2, .* received 'linear"),
        (
            ad.Learnable(0.1, high=0.6),
            0.5,
            r"cannot exceed sigma_max=0.5 \(give it high=0.5 or less\), received 'learn",
        ),
        (ad.EntropyTarget(0.1), sc.Linear(1.0, 0.2), r"cannot exceed sigma_max=linear.* \(give it high=0.2 or less\)"),
        (
            ad.EntropyTarget(0.1, low=0.1),
            sc.Warmup(1.0),
            r"cannot exceed sigma_max=warmup.* \(give it high=0.0 or less\)",
        ),
        (ad.Learnable(0.2), ad.EntropyTarget(0.1, low=0.4), "at most 0.4, .* low=0.5 or more"),
        (
            0.5,
            sc.PerHead([1.0, 0.4]),
            r"sigma_min: expected at most sigma_max=heads\(values=\[1.0,0.4\]\), received 0.5",
        ),
        (sc.PerHead([0.1, 0.6]), sc.PerHead([1.0, 0.5]), r"received 'heads\(values=\[0.1,0.6\]\)'"),
    ],
)
def test_what_a_rate_may_reach_is_checked_at_once(low: Any, high: Any, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=f"sigma_min: expected .*{message.removeprefix('sigma_min: expected ')}"):
        ad.BlurSmoothing(sigma_min=low, sigma_max=high)


@pytest.mark.parametrize(
    "low, high",
    [
        (0.5, ad.EntropyTarget(0.1, low=0.5, high=1.0)),
        (0.5, ad.Learnable(0.6, low=0.5, high=2.0)),
        (0.0, ad.Learnable(0.6, high=2.0)),
        (ad.Learnable(0.1, high=0.5), 0.5),
        (ad.Learnable(0.1, high=0.5), ad.EntropyTarget(0.1, low=0.5, high=1.0)),
        (sc.Linear(0.5, 0.1), ad.Learnable(0.6, low=0.5, high=2.0)),
        (sc.PerHead([0.1, 0.5]), sc.PerHead([1.0, 0.5])),
        (sc.PerHead([0.1, sc.Linear(0.0, 0.5)]), 0.5),
    ],
)
def test_what_fits_is_accepted(low: Any, high: Any) -> None:
    spec = ad.BlurSmoothing(sigma_min=low, sigma_max=high)
    check_schedules([spec])
    assert ad.parse(str(spec)) == spec


def test_texts_say_it_too() -> None:
    with pytest.raises(ad.AttentionDropError, match=r"sigma_min: expected at most 0\.0, the lowest"):
        ad.parse(ENTROPY.format(0.5))
    assert ad.parse(ENTROPY.format(0.0)).sigma_max.start == 0.9


DIP = sc.Piecewise([0.0, 0.1, 0.2], [1.0, 0.1, 1.0])


@pytest.mark.parametrize(
    "low, high",
    [
        (0.3, DIP),
        (0.3, sc.VShape(1.0, 0.29, turn=0.13)),
        (sc.Warmup(0.5, share=0.1), sc.Linear(0.4, 1.0)),
        (sc.Linear(0.0, 0.8), sc.Steps([0.0, 0.45], [0.355, 1.0])),  # too small only right before the step
        (sc.Linear(1.0, 0.0), sc.Steps([0.0, 0.1], [1.0, 0.895])),  # too small only where the step begins
        (0.3, sc.Steps([0.0, 0.1, 0.11], [1.0, 0.1, 1.0])),  # too small only on one step
        (sc.Linear(0.0, 1.0), sc.Cosine(0.01, 1.0)),  # a curve: too small only between its ends
        (sc.Warmup(0.5, share=0.1), sc.Warmup(sc.Linear(0.4, 2.0), share=0.1)),  # a short curve, between its corners
        (0.3, sc.PerLayer([1.0, DIP])),
        (0.3, sc.Depth(1.0, DIP)),
        (0.3, sc.PerHead([1.0, DIP])),
        (0.3, sc.Constant(DIP)),
        (0.3, sc.Warmup(DIP, share=0.0)),
        (0.3, sc.Piecewise([0.0, 1.0], [DIP, 1.0])),
        (0.3, sc.Steps([0.0], [DIP])),
        (0.3, sc.VShape(DIP, 1.0, turn=0.9)),
    ],
    ids=str,
)
def test_schedules_are_checked_where_they_bend(low: Any, high: Any) -> None:
    spec = ad.BlurSmoothing(sigma_min=low, sigma_max=high)
    for whole in (spec, ad.OneOf([ad.DropKey(), ad.Compose([ad.HardMasking(), spec])])):
        with pytest.raises(ad.ArgumentError, match="sigma_min: expected at most sigma_max="):
            check_schedules([whole, whole])


def test_the_present_progress_is_checked() -> None:
    """A narrow dip of a schedule that does not tell its corners is found at least where the run is."""

    class Dip(sc.Schedule):
        def at(self, progress: float, layer: int = 0, layers: int = 1) -> float:
            return 0.1 if progress == 0.123 else 1.0

        def extremes(self) -> Any:
            yield from (0.1, 1.0)

    spec = ad.BlurSmoothing(sigma_min=0.3, sigma_max=Dip())
    check_schedules([spec])
    with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
        check_schedules([spec], 0.123)


def test_schedules_that_fit_everywhere_are_accepted() -> None:
    check_schedules([ad.BlurSmoothing(sigma_min=0.1, sigma_max=DIP)] * 2)
    check_schedules([ad.BlurSmoothing(sigma_min=sc.Warmup(0.3, 0.1), sigma_max=sc.Piecewise([0.0, 0.1], [0.0, 0.3]))])


def test_rates_are_compared_where_they_must_keep_an_order_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate for each of thousands of steps must not make `attach` wait."""
    many = ad.schedules.Steps([step / 2000 for step in range(2000)], [0.3 + 0.1 * (step % 2) for step in range(2000)])
    evaluated: list[float] = []
    at = Spec.at
    monkeypatch.setattr(Spec, "at", lambda spec, place, *layer: evaluated.append(place) or at(spec, place, *layer))
    for spec, most in (
        (ad.HardMasking(p=many), 3),
        (ad.BlurSmoothing(many), 3),
        (ad.BlurSmoothing(many, sigma_min=0.3), 4100),
    ):
        evaluated.clear()
        check_over_training(spec)
        assert len(evaluated) <= most
    with pytest.raises(ad.ArgumentError, match="sigma_min"):
        check_over_training(ad.BlurSmoothing(many, sigma_min=ad.schedules.Constant(0.35)))
