"""PAC-Bayes bounds against closed forms, a published value and brute force; what is wrong with the paper's."""

from __future__ import annotations

import json
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from attentiondrop import ArgumentError, AttentionDropError
from attentiondrop.errors import ShapeError
from attentiondrop.theory import (
    Divergence,
    binomial_upper,
    gaussian_kl,
    kl_inverse,
    logit_noise_kl,
    pac_bayes_bound,
    paper_kl,
)
from attentiondrop.theory.divergences import PAPER_SIGN_CHANGE


def test_formulas() -> None:
    constant = math.log(2 * math.sqrt(500) / 0.05)
    mcallester = pac_bayes_bound(0.1, 20.0, 500, kind="mcallester")
    assert mcallester.value == pytest.approx(0.1 + math.sqrt((20 + constant) / 1000))
    paper = pac_bayes_bound(0.1, 20.0, 500, kind="paper")
    assert paper.value == pytest.approx(0.1 + math.sqrt((20 + constant) / 999))
    assert paper.valid and paper.value > mcallester.value
    assert [any("2n - 1" in note for note in each.notes) for each in (mcallester, paper)] == [False, True]
    seeger = pac_bayes_bound(0.1, 20.0, 500)
    assert seeger.value == kl_inverse(0.1, (20 + constant) / 500)
    assert seeger.value < mcallester.value
    at_zero = pac_bayes_bound(0.0, 3.0, 200, delta=0.1)
    assert at_zero.value == pytest.approx(1 - math.exp(-(3 + math.log(2 * math.sqrt(200) / 0.1)) / 200))


def test_a_published_bound() -> None:
    """Dziugaite and Roy (2017), table 1, network T-600: 55,000 examples, stochastic training error 0.028, KL 5144, bound
    0.161. Their constant differs from ours by less than the rounding of these numbers."""
    assert pac_bayes_bound(0.028, 5144, 55000, delta=0.035).value == pytest.approx(0.161, abs=0.003)


def test_maurers_constant_by_brute_force() -> None:
    """The sum over k of C(n, k) (k/n)^k (1 - k/n)^(n-k), which is what the proof needs, is at most 2 sqrt(n)."""
    for n in (1, 2, 3, 5, 8, 50, 400):
        k = np.arange(n + 1)
        terms = scipy.stats.binom.pmf(k, n, k / n)
        assert terms.sum() <= 2 * math.sqrt(n) + 1e-12


def test_vacuous_bounds_say_so() -> None:
    bound = pac_bayes_bound(0.3, 5000.0, 100, kind="mcallester")
    assert bound.vacuous and bound.valid and str(bound).startswith("vacuous <= ")
    assert pac_bayes_bound(0.3, math.inf, 100).value == 1.0
    assert pac_bayes_bound(0.3, math.inf, 100).vacuous
    assert pac_bayes_bound(0.3, math.inf, 100, kind="mcallester").to_dict()["value"] is None
    good = pac_bayes_bound(0.05, 1.0, 1000)
    assert not good.vacuous and str(good).startswith("risk <= 0.0")
    plain = json.loads(json.dumps(good.to_dict()))
    assert plain["vacuous"] is False and plain["value"] == good.value and plain["delta"] == 0.05


def test_the_papers_instantiation_is_no_bound() -> None:
    small, large = paper_kl(0.01, heads=4, tokens=17), paper_kl(0.5, heads=4, tokens=17)
    assert small.value == pytest.approx(4 * 17**2 * (-math.log(0.01) - 0.5 * math.log(2 * math.pi * math.e)))
    assert float(large) < 0 < float(small)
    assert [any(note.startswith("negative") for note in each.notes) for each in (small, large)] == [False, True]
    assert paper_kl(PAPER_SIGN_CHANGE, 1, 1).value == pytest.approx(0.0, abs=1e-12)
    for kl in (small, large):
        bound = pac_bayes_bound(0.05, kl, 1000, kind="paper")
        assert not bound.valid and bound.vacuous and "infinite" in str(bound)
        assert not pac_bayes_bound(0.05, kl, 10**6).valid  # whatever formula it is put into
    bound = pac_bayes_bound(0.05, large, 1000, kind="paper")
    assert math.isnan(bound.value) and "the root of a negative number" in bound.notes
    assert json.loads(json.dumps(bound.to_dict()))["value"] is None
    # A KL that is only a little negative gives a number below the empirical risk's honest bound, and is no bound either.
    slightly = pac_bayes_bound(0.05, -1.0, 1000, kind="paper")
    assert not slightly.valid and "never negative" in slightly.notes[0] and math.isfinite(slightly.value)


def test_the_noise_kl_that_should_stand_there() -> None:
    values = [logit_noise_kl(sigma, 0.1, heads=4, tokens=17) for sigma in (0.01, 0.05, 0.1, 0.2, 1.0)]
    assert values[2] == 0.0 and min(values) >= 0.0
    assert values[0] > values[1] > values[2] < values[3] < values[4]
    assert logit_noise_kl(0.2, 0.1, 4, 17, layers=3) == pytest.approx(3 * values[3])
    assert values[3] == pytest.approx(4 * 17**2 * (math.log(0.1 / 0.2) + 0.2**2 / (2 * 0.1**2) - 0.5))


def test_gaussian_kl_by_integration() -> None:
    for mean, std, prior_mean, prior_std in ((0.3, 0.5, -0.2, 1.1), (0.0, 2.0, 1.0, 0.7)):
        p, q = scipy.stats.norm(prior_mean, prior_std), scipy.stats.norm(mean, std)
        expected, _ = scipy.integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), -20, 20, epsabs=1e-12)
        assert gaussian_kl(mean, std, prior_mean, prior_std) == pytest.approx(expected, rel=1e-8)
    many = gaussian_kl(np.zeros((3, 4)), 0.5, 0.0, [1.0, 2.0, 3.0, 4.0])
    assert many == pytest.approx(3 * sum(gaussian_kl(0, 0.5, 0, s) for s in (1, 2, 3, 4)))


def test_a_growing_posterior_entropy_does_not_lower_the_kl_for_ever() -> None:
    """The paper's appendix: KL = -H(Q) - E_Q log P, "since P is fixed", falls as H(Q) grows. The second term grows too."""
    sigmas = np.linspace(0.05, 3.0, 60)
    kls = [gaussian_kl(0.0, sigma, 0.0, 1.0) for sigma in sigmas]
    assert np.argmin(kls) == np.argmin(abs(sigmas - 1.0)) and kls[-1] > kls[30]


def test_the_papers_change_of_measure_is_false() -> None:
    """`E_Q X <= exp(KL(Q || P)) E_P X` fails for two functions."""
    p, q, x = np.array([0.99, 0.01]), np.array([0.5, 0.5]), np.array([0.0, 1.0])
    kl = float((q * np.log(q / p)).sum())
    assert q @ x > math.exp(kl) * (p @ x)
    # What does hold: E_Q ln X <= KL + ln E_P X, for a positive X.
    x = np.array([0.1, 5.0])
    assert q @ np.log(x) <= kl + math.log(p @ x)


def test_binomial_tail_inversion() -> None:
    for errors, n, delta in ((0, 100, 0.05), (3, 50, 0.01), (17, 539, 0.05), (499, 500, 0.05), (1200, 50000, 0.001)):
        expected = scipy.stats.beta.ppf(1 - delta, errors + 1, n - errors)
        assert binomial_upper(errors, n, delta) == pytest.approx(expected, rel=1e-9)
        assert binomial_upper(errors, n, delta) <= kl_inverse(errors / n, math.log(1 / delta) / n) * (1 + 1e-9)
    assert binomial_upper(5, 5) == 1.0
    assert binomial_upper(0, 1000) == pytest.approx(3 / 1000, rel=0.01)


def test_the_binomial_limit_covers_exactly() -> None:
    n, delta = 30, 0.1
    limits = np.array([binomial_upper(k, n, delta) for k in range(n + 1)])
    for p in np.linspace(0.01, 0.99, 33):
        missed = scipy.stats.binom.pmf(np.arange(n + 1), n, p)[limits < p].sum()
        assert missed <= delta + 1e-12


@pytest.mark.parametrize("errors, n, delta", [(0, 20, 0.05), (7, 539, 0.01), (41, 10_000, 0.3), (60, 10**6, 1e-5)])
def test_rounding_never_makes_the_binomial_limit_smaller(errors: int, n: int, delta: float) -> None:
    with mpmath.workdps(60):
        p = mpmath.mpf(binomial_upper(errors, n, delta))
        assert sum(mpmath.binomial(n, k) * p**k * (1 - p) ** (n - k) for k in range(errors + 1)) <= delta


@pytest.mark.parametrize("kind, denominator", [("mcallester", 200), ("paper", 199)])
def test_rounding_never_makes_a_root_smaller(kind: str, denominator: int) -> None:
    with mpmath.workdps(60):
        for risk in np.linspace(0.0, 0.5, 101):
            exact = mpmath.mpf(risk) + mpmath.sqrt((2 + mpmath.log(20 / mpmath.mpf(0.1))) / denominator)
            assert pac_bayes_bound(risk, 2.0, 100, delta=0.1, kind=kind).value >= exact


def test_a_short_text_rounds_a_bound_up() -> None:
    for delta in np.linspace(0.01, 0.2, 20):
        bound = pac_bayes_bound(0.05, 1.0, 1000, delta)
        assert float(str(bound).split()[2]) >= bound.value
    assert "with probability 0.9999999 (" in str(pac_bayes_bound(0.05, 1.0, 1000, delta=1e-7))


def test_a_divergence_of_ones_own_is_checked_too() -> None:
    bound = pac_bayes_bound(0.05, Divergence(-1.0), 1000)
    assert not bound.valid and "never negative" in str(bound)
    with pytest.raises(ArgumentError, match=r"kl: expected a number, received nan"):
        pac_bayes_bound(0.05, Divergence(math.nan), 1000, kind="mcallester")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"empirical_risk": 1.2}, r"empirical_risk: expected a number in \[0, 1\], received 1.2"),
        ({"kl": -1.0}, r"kl: expected a number >= 0, received -1.0"),
        ({"kl": math.nan, "kind": "paper"}, r"kl: expected a number, received nan"),
        ({"n": 0}, r"n: expected a number >= 1, received 0"),
        ({"delta": 0.0}, r"delta: expected a number between 0 and 1, both excluded, received 0.0"),
        ({"delta": 1.0}, r"delta: expected a number between 0 and 1, both excluded, received 1.0"),
        ({"kind": "hoeffding"}, r"kind: expected one of 'seeger', 'mcallester', 'paper', received 'hoeffding'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pac_bayes_bound(**({"empirical_risk": 0.1, "kl": 1.0, "n": 100} | arguments))


def test_bad_divergences() -> None:
    with pytest.raises(ArgumentError, match=r"std: expected finite numbers above 0, received '0.0 to 0.0'"):
        gaussian_kl(0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ArgumentError, match=r"mean: expected finite numbers, received 'nan to nan'"):
        gaussian_kl(math.nan, 1.0, 0.0, 1.0)
    with pytest.raises(ShapeError, match=r"expected shapes that broadcast, received \(2,\), \(3,\), \(\), \(\)"):
        gaussian_kl([0.0, 0.0], [1.0, 1.0, 1.0], 0.0, 1.0)
    with pytest.raises(ArgumentError, match=r"sigma: expected a number > 0, received 0.0"):
        paper_kl(0.0, 1, 1)
    with pytest.raises(AttentionDropError, match=r"errors: expected at most n = 3, received 4"):
        binomial_upper(4, 3)
    with pytest.raises(ArgumentError, match=r"^sigma: expected a number > 0, received 0.0"):
        logit_noise_kl(0.0, 0.1, heads=4, tokens=17)
    with pytest.raises(ArgumentError, match=r"^prior_sigma: expected a number > 0, received 0"):
        logit_noise_kl(0.1, 0, heads=4, tokens=17)
