"""Certificates from tables of losses: what they cover, how often they hold, what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from attentiondrop import ArgumentError
from attentiondrop.errors import ShapeError
from attentiondrop.theory import certificate_from_losses, kl_inverse
from attentiondrop.theory.certificate import mean_bound
from attentiondrop.theory.disagreement import through_disagreement, through_kl, through_views

#: Violations that 1,000 certificates with delta = 0.05 exceed with probability 1e-6 if each is wrong just that often.
MOST = int(scipy.stats.binom.isf(1e-6, 1000, 0.05))


def test_the_value_and_what_it_rests_on() -> None:
    losses = np.zeros((4, 200))
    losses[:2, :30] = 1.0
    found = certificate_from_losses(losses, delta=0.01)
    assert found.estimate == pytest.approx(0.075)
    assert found.value == kl_inverse(0.075, math.log(100) / 200)
    assert (found.n, found.draws, found.vacuous) == (200, 4, False)
    shared = certificate_from_losses(losses, delta=0.01, shared_draws=True)
    inner = kl_inverse(0.075, math.log(200) / 200)
    assert shared.value == kl_inverse(inner, math.log(200) / 4) > found.value
    assert any("i.i.d." in line for line in found.assumptions) and found.assumptions != shared.assumptions
    assert json.loads(json.dumps(found.to_dict()))["value"] == found.value


def test_a_vacuous_certificate_says_so() -> None:
    found = certificate_from_losses(np.ones((2, 10)))
    assert found.vacuous and "risk <= vacuous" in str(found)


def test_a_short_text_rounds_the_bound_up() -> None:
    for n in range(50, 70):
        found = certificate_from_losses(np.zeros((2, n)), delta=1e-7)
        text, *rest = str(found).partition("<= ")[2].split()
        assert found.value <= float(text) < found.value + 1e-4 and rest[:3] == ["with", "probability", "0.9999999;"]


@pytest.mark.parametrize("losses", [np.full((2, 5), 1.1), np.full((2, 5), -0.1), np.full((2, 5), math.nan)])
def test_losses_outside_the_unit_interval_are_refused(losses: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match=r"loss: expected values in \[0, 1\], which every bound here needs"):
        certificate_from_losses(losses)


def test_other_refusals() -> None:
    with pytest.raises(ArgumentError, match=r"draws: expected a number >= 2, received 1"):
        certificate_from_losses(np.zeros((1, 5)))
    with pytest.raises(ShapeError, match=r"losses: expected \[draws, examples\], received \[5\]"):
        certificate_from_losses(np.zeros(5))
    with pytest.raises(ArgumentError, match=r"delta: expected a number in \[0, 1\], received 2"):
        certificate_from_losses(np.zeros((2, 5)), delta=2)


def test_counting_an_example_as_an_error_only_raises_the_bound() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(2, 60))
        values = rng.random(n) * (rng.random(n) < rng.random())
        kept = mean_bound(values, 0.05)
        assert mean_bound(np.append(values, 1.0), 0.05) >= kept


def world(rng: np.random.Generator, points: int = 40, classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A finite world: for each input the chances of each class over draws, the fixed prediction, and the label."""
    chances = rng.dirichlet(np.full(classes, 0.4), size=points)
    labels = np.where(rng.random(points) < 0.8, chances.argmax(1), rng.integers(classes, size=points))
    return chances, rng.integers(classes, size=points), labels


def test_the_inequalities_hold_in_every_world() -> None:
    """Statements 1 to 3 of `disagreement`, with all expectations taken exactly."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        chances, fixed, labels = world(rng)
        rows = np.arange(len(labels))
        risk = 1 - chances[rows, labels].mean()
        assert (fixed != labels).mean() <= risk + (1 - chances[rows, fixed]).mean() + 1e-12
        vote = chances.argmax(1)
        pairs = 1 - (chances**2).sum(1)
        assert (vote != labels).mean() <= risk + pairs.mean() + 1e-12
        p, q = rng.dirichlet(np.full(3, 0.5), size=(2, 40))
        kl = (p * np.log(p / q)).sum(1)
        distance = np.minimum(1, np.sqrt(kl / 2))
        assert (1 - p[rows, labels]).mean() <= (1 - q[rows, labels]).mean() + distance.mean() + 1e-12


@pytest.mark.parametrize(
    "bound, name, predictor, what",
    [
        (
            through_disagreement,
            "deterministic, through dis",
            "the model in eval(), 0-1",
            "disagreement with the random",
        ),
        (through_views, "majority vote, through views", "the vote over infinitely", "disagreement between two views"),
        (through_kl, "softmax, through the cons", "the model in eval() that draws", "distance sqrt(KL / 2)"),
    ],
)
def test_sums_of_two_bounds_have_half_of_delta_each(bound: Any, name: str, predictor: str, what: str) -> None:
    losses, extra = np.repeat([1.0, 0.0], [20, 180]), np.repeat([1.0, 0.0], [30, 170])
    found = bound(losses, extra, 4, 0.1)
    assert found.value == pytest.approx(sum(kl_inverse(q, math.log(2 / 0.1) / 200) for q in (0.1, 0.15)))
    assert (found.estimate, found.n, found.draws, found.delta) == (pytest.approx(0.25), 200, 4, 0.1)
    assert found.name.startswith(name) and found.predictor.startswith(predictor) and what in found.how


def draw_classes(rng: np.random.Generator, chances: np.ndarray, draws: int) -> np.ndarray:
    return (rng.random((draws, len(chances), 1)) > chances.cumsum(1)[None, :, :-1]).sum(-1)


def test_certificates_hold_in_simulated_data_sets() -> None:
    """1,000 data sets from a world whose risks are known; false-alarm rate 1e-6 for each certificate."""
    rng = np.random.default_rng(2)
    chances, fixed, labels = world(rng)
    chances = np.clip(chances, 1e-9, 1)
    chances /= chances.sum(1, keepdims=True)
    softmax = rng.dirichlet(np.full(3, 0.5), size=40)
    rows = np.arange(40)
    risk, vote = 1 - chances[rows, labels].mean(), (chances.argmax(1) != labels).mean()
    shared = rng.random((5000, 40)) < 0.3  # a population of models, drawn whole
    wrong = dict.fromkeys(("own", "shared", "disagreement", "views", "kl"), 0)
    for _ in range(1000):
        x = rng.integers(40, size=60)
        drawn = draw_classes(rng, chances[x], 4)
        losses = drawn != labels[x]
        wrong["own"] += certificate_from_losses(losses).value < risk
        models = shared[rng.integers(5000, size=200)][:, x]
        wrong["shared"] += certificate_from_losses(models, shared_draws=True).value < shared.mean()
        apart = (drawn != fixed[x]).mean(0)
        wrong["disagreement"] += through_disagreement(losses.mean(0), apart, 4, 0.05).value < (fixed != labels).mean()
        pairs = np.mean([drawn[i] != drawn[j] for i in range(4) for j in range(i)], axis=0)
        wrong["views"] += through_views(losses.mean(0), pairs, 4, 0.05).value < vote
        soft = 1 - chances[x, labels[x]]
        distance = np.minimum(1, np.sqrt((softmax * np.log(softmax / chances)).sum(1) / 2))[x]
        wrong["kl"] += through_kl(soft, distance, 4, 0.05).value < 1 - softmax[rows, labels].mean()
    assert max(wrong.values()) <= MOST, wrong
    # Chernoff is not exact, but it must not be idle either: the simplest one fails sometimes.
    assert wrong["own"] > 0, wrong


def test_pac_bayes_bounds_hold_for_a_posterior_that_overfits() -> None:
    """200 predictors of random quality, a Gibbs posterior fitted to 60 examples, 1,000 times; false-alarm rate 1e-6."""
    from attentiondrop.theory import pac_bayes_bound

    rng = np.random.default_rng(3)
    risks = rng.uniform(0.2, 0.6, size=200)
    prior = np.full(200, 1 / 200)
    wrong = dict.fromkeys(("seeger", "mcallester", "paper"), 0)
    for _ in range(1000):
        empirical = rng.binomial(60, risks) / 60
        posterior = prior * np.exp(-60 * empirical)
        posterior /= posterior.sum()
        kl = float((posterior * np.log(posterior / prior)).sum())
        for kind in wrong:
            bound = pac_bayes_bound(float(posterior @ empirical), kl, 60, kind=kind)
            wrong[kind] += bound.value < posterior @ risks
    assert max(wrong.values()) <= MOST, wrong


def test_one_expected_failure_rate_is_close_to_delta() -> None:
    """Where a bound can be checked exactly: the binomial case, summed over all outcomes. Never above delta."""
    n, delta = 40, 0.05
    counts = np.arange(n + 1)
    values = np.array([kl_inverse(k / n, math.log(1 / delta) / n) for k in counts])
    for p in np.linspace(0.02, 0.98, 49):
        assert scipy.stats.binom.pmf(counts, n, p)[values < p].sum() <= delta
