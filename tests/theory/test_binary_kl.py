"""The KL of two coins and its inverse, against closed forms and 50-digit arithmetic."""

from __future__ import annotations

import math
import random

import mpmath
import pytest

from attentiondrop import ArgumentError
from attentiondrop.theory import binary_kl, kl_inverse

RISKS = [1e-12, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9]
BUDGETS = [1e-16, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 5.0, 30.0]


def exact_kl(q: float, p: mpmath.mpf) -> mpmath.mpf:
    q = mpmath.mpf(q)
    return q * mpmath.log(q / p) + (1 - q) * mpmath.log((1 - q) / (1 - p))


def exact_inverse(q: float, budget: float) -> mpmath.mpf:
    low, high = mpmath.mpf(q), mpmath.mpf(1)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_kl(q, middle) <= budget else (low, middle)
    return low


@pytest.mark.parametrize("q", RISKS)
def test_the_inverse_is_exact_to_1e_12(q: float) -> None:
    with mpmath.workdps(60):
        for budget in BUDGETS:
            assert abs(kl_inverse(q, budget) - exact_inverse(q, budget)) < 1e-12


@pytest.mark.parametrize("q", RISKS)
def test_kl_keeps_its_digits_near_the_diagonal(q: float) -> None:
    with mpmath.workdps(60):
        for gap in (1e-9, 1e-5, 1e-2):
            p = q + gap * min(q, 1 - q)
            if p != q:
                expected = exact_kl(q, mpmath.mpf(p))
                assert abs(binary_kl(q, p) - expected) <= 1e-12 * expected


def test_closed_forms() -> None:
    for budget in BUDGETS:
        assert kl_inverse(0.0, budget) == pytest.approx(-math.expm1(-budget), rel=1e-14)
        # KL(1/2 || p) = -ln(4 p (1 - p)) / 2.
        assert kl_inverse(0.5, budget) == pytest.approx(0.5 + 0.5 * math.sqrt(-math.expm1(-2 * budget)), abs=1e-14)
    assert kl_inverse(1.0, 0.3) == 1.0
    assert kl_inverse(0.3, 0.0) == 0.3
    assert kl_inverse(0.3, math.inf) == kl_inverse(0.0, math.inf) == 1.0


def test_values_at_the_ends() -> None:
    assert binary_kl(0.0, 0.0) == binary_kl(1.0, 1.0) == binary_kl(0.2, 0.2) == 0.0
    assert binary_kl(0.2, 0.0) == binary_kl(0.2, 1.0) == binary_kl(0.0, 1.0) == math.inf
    assert binary_kl(0.0, 0.25) == pytest.approx(-math.log(0.75))
    assert binary_kl(1.0, 0.25) == pytest.approx(-math.log(0.25))


def test_the_inverse_errs_upwards_and_grows() -> None:
    for q in RISKS:
        for budget in BUDGETS:
            assert binary_kl(q, kl_inverse(q, budget)) >= budget * (1 - 1e-9)
        assert sorted(kl_inverse(q, budget) for budget in BUDGETS) == [kl_inverse(q, budget) for budget in BUDGETS]
    for budget in BUDGETS:
        assert sorted(kl_inverse(q, budget) for q in RISKS) == [kl_inverse(q, budget) for q in RISKS]


def test_rounding_never_makes_the_inverse_smaller() -> None:
    rng = random.Random(0)
    with mpmath.workdps(60):
        for _ in range(500):
            q = rng.choice([0.0, rng.random(), 10 ** rng.uniform(-17, 0), 1 - 10 ** rng.uniform(-12, 0)])
            budget = 10 ** rng.uniform(-14, 1)
            found = kl_inverse(q, budget)
            if found < 1.0:
                exact = exact_kl(q, mpmath.mpf(found)) if q else -mpmath.log(1 - mpmath.mpf(found))
                assert exact >= budget, (q, budget)


def test_a_mean_that_is_nearly_0_is_no_better_than_0() -> None:
    """p / q overflows there."""
    for q in (5e-324, 1e-310, 1e-300):
        assert binary_kl(q, 0.5) == pytest.approx(math.log(2)) and kl_inverse(q, 1.0) >= 1 - math.exp(-1.0)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"q: expected a number in \[0, 1\], received 1.5"):
        kl_inverse(1.5, 0.1)
    with pytest.raises(ArgumentError, match=r"budget: expected a number >= 0, received -1"):
        kl_inverse(0.5, -1)
    with pytest.raises(ArgumentError, match=r"p: expected a number in \[0, 1\], received nan"):
        binary_kl(0.5, math.nan)
