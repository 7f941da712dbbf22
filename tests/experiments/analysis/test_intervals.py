"""The statistics: compared with SciPy, with numbers by hand, and by how often an interval covers the true value."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.stats

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.intervals import (
    ENOUGH_SEEDS,
    Interval,
    Spread,
    by_chance,
    corrected,
    few_seeds_note,
    holm,
    many_comparisons_note,
    paired_difference,
    signed,
)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"kind: expected one of 't', 'bootstrap', received 'z'"):
        paired_difference({0: 1.0}, {0: 1.0}, kind="z")
    with pytest.raises(ArgumentError, match="p_values: expected a number in"):
        holm([1.5])


def test_mean_and_sample_deviation_by_hand() -> None:
    spread = Spread.of([0.90, 0.94])
    assert spread.mean == pytest.approx(0.92)
    assert spread.std == pytest.approx(0.04 / 2**0.5)
    assert spread.times(100).text(1) == "92.0 ± 2.8"
    assert spread.times(100).text(1, "+-") == "92.0 +- 2.8"
    assert Spread.of([0.5]) == Spread(0.5, None, 1)
    assert Spread.of([0.5]).text(2) == "0.50"


@pytest.mark.parametrize("count", [2, 3, 5, 10, 31])
def test_interval_and_p_value_are_those_of_the_paired_t_test(count: int) -> None:
    generator = np.random.default_rng(count)
    ours, theirs = generator.normal(0.9, 0.02, (2, count))
    found = paired_difference(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = scipy.stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.mean == pytest.approx(np.mean(ours - theirs))
    assert found.std == pytest.approx(np.std(ours - theirs, ddof=1))
    assert found.interval.excludes_zero == (expected.pvalue < 0.05)
    assert not found.marked, "nothing is marked before it was corrected for all comparisons"


def test_a_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, standard error 1/sqrt(3), t quantile 4.3027 with two degrees.
    found = paired_difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert found.interval.high - found.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert found.text(2) == "+2.00 [-0.48, +4.48]"
    assert not found.marked
    flipped = found.times(-100)
    assert (flipped.interval.low, flipped.interval.high) == pytest.approx((-448.41, 48.41), abs=0.01)
    assert flipped.std == pytest.approx(100.0)


def test_only_shared_seeds_are_paired_and_the_others_are_named() -> None:
    found = paired_difference({0: 1.0, 2: 3.0, 5: 9.0}, {0: 0.5, 1: 7.0, 2: 2.0})
    assert found.seeds == (0, 2)
    assert found.left_out == (1, 5)
    assert found.mean == pytest.approx(0.75)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.2, 0.1, True),
        (0.1, 0.2, True),
        (-0.4, 0.1, False),
        (-0.1, 0.4, False),
        (-0.3, 0.1, False),
        (-0.1, 0.3, False),
    ],
)
def test_within_a_margin_on_both_sides(low: float, high: float, expected: bool) -> None:
    assert Interval(low, high).within(0.3) is expected


def test_one_seed_has_no_interval() -> None:
    found = paired_difference({0: 1.0}, {0: 0.5})
    assert (found.std, found.interval, found.p_value, found.marked) == (None, None, None, False)
    assert found.text(1) == "+0.5"


@pytest.mark.parametrize("kind", ["t", "bootstrap"])
def test_equal_differences_give_no_interval(kind: str) -> None:
    # These differences are equal except for rounding, which must not give a very narrow interval.
    baseline = {seed: 0.2 + 0.1 * seed for seed in range(5)}
    found = paired_difference({seed: value + 0.1 for seed, value in baseline.items()}, baseline, kind)
    assert found.interval is None
    assert found.p_value is None
    assert not found.marked


def test_the_t_interval_holds_the_truth_19_times_of_20() -> None:
    """5,000 comparisons of 5 seeds. A correct interval fails this test once in 16,000 times (4 standard errors)."""
    generator = np.random.default_rng(7)
    count, truth = 5_000, 0.01
    held = 0
    for _ in range(count):
        shared = generator.normal(0, 0.05, 5)
        ours = dict(enumerate(shared + truth + generator.normal(0, 0.01, 5)))
        interval = paired_difference(ours, dict(enumerate(shared + generator.normal(0, 0.01, 5)))).interval
        held += interval.low <= truth <= interval.high
    assert abs(held / count - 0.95) < 4 * (0.95 * 0.05 / count) ** 0.5


def test_the_bootstrap_is_seeded_and_narrower_than_it_should_be_with_few_seeds() -> None:
    ours, theirs = {0: 1.03, 1: 3.0, 2: 2.47, 3: 1.58, 4: 2.21}, dict.fromkeys(range(5), 1.0)
    first, again, other = (paired_difference(ours, theirs, "bootstrap", seed) for seed in (3, 3, 4))
    assert first == again
    assert first.mean == other.mean
    assert first.interval.low >= 0.03 and first.interval.high <= 2.0
    many = dict(enumerate(np.random.default_rng(0).random(30)))
    seeds = {paired_difference(many, dict.fromkeys(many, 0.0), "bootstrap", seed).interval for seed in (3, 4)}
    assert len(seeds) == 2
    student = paired_difference(ours, theirs).interval
    assert first.interval.high - first.interval.low < student.high - student.low


def test_the_bootstrap_agrees_with_scipy_over_many_seeds() -> None:
    differences = np.random.default_rng(0).normal(0.5, 1.0, 60)
    found = paired_difference(dict(enumerate(differences)), dict.fromkeys(range(60), 0.0), "bootstrap").interval
    expected = scipy.stats.bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=9999, rng=np.random.default_rng(1)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.5, 0.6]) == [None, 1.0, 1.0]
    assert holm([]) == []
    # Never smaller than the raw value, never larger than Bonferroni's.
    raw = list(np.random.default_rng(0).random(20))
    for p, adjusted in zip(raw, holm(raw), strict=True):
        assert p <= adjusted <= min(1.0, 20 * p)


@pytest.mark.parametrize(("low", "high", "excludes"), [(-1, 1, False), (0, 1, False), (0.1, 1, True), (-2, -1, True)])
def test_what_excludes_zero(low: float, high: float, excludes: bool) -> None:
    assert Interval(low, high).excludes_zero is excludes


def test_few_seeds_and_many_comparisons_come_with_a_note() -> None:
    assert few_seeds_note(1).startswith("One seed is too few to tell the methods apart, and gives no interval")
    assert few_seeds_note(2).startswith("Two seeds are too few")
    assert few_seeds_note(ENOUGH_SEEDS - 1).startswith("Four seeds are too few")
    assert few_seeds_note(ENOUGH_SEEDS) is None
    assert few_seeds_note(0) is None
    assert many_comparisons_note(1, 1, 1) is None
    note = many_comparisons_note(6, 2, 1)
    assert note.startswith("6 comparisons were made: of 95 % intervals, 1 in 20 excludes zero by chance alone.")
    assert "Here 2 do, and 1 remains after Holm's correction for that" in note


def test_how_many_intervals_exclude_zero_by_chance() -> None:
    """Reports say it of both kinds."""
    normal = np.random.default_rng(0)

    def share(kind: str, seeds: int) -> float:
        each = [paired_difference(dict(enumerate(x)), dict.fromkeys(range(seeds), 0.0), kind) for x in runs[seeds]]
        return sum(one.interval.excludes_zero for one in each) / len(each)

    runs = {seeds: normal.normal(size=(600, seeds)) for seeds in (5, 10)}
    assert by_chance("t") == "1 in 20" and share("t", 5) == pytest.approx(1 / 20, abs=0.02)
    assert by_chance("bootstrap") == "1 in 6 with 5 seeds or 1 in 10 with 10"
    assert share("bootstrap", 5) == pytest.approx(1 / 6, abs=0.03)
    assert share("bootstrap", 10) == pytest.approx(1 / 10, abs=0.03)
    assert f"of 95 % intervals, {by_chance('bootstrap')} excludes zero" in many_comparisons_note(6, 2, 1, "bootstrap")


def test_a_mark_needs_what_remains_after_holms_correction_and_an_interval_without_zero() -> None:
    clear = paired_difference({0: 0.91, 1: 0.92, 2: 0.93, 3: 0.94}, dict.fromkeys(range(4), 0.9))
    noise = paired_difference({0: 0.91, 1: 0.89, 2: 0.92, 3: 0.88}, dict.fromkeys(range(4), 0.9))
    assert 0.025 < clear.p_value < 0.05 and clear.interval.excludes_zero
    assert [each.marked for each in corrected([clear])] == [True]
    found = corrected([clear, None, noise])
    assert found[1] is None and not found[0].marked and found[0].holm_p == pytest.approx(2 * clear.p_value)
    assert found[0].times(100).holm_p == found[0].holm_p
    assert not dataclasses.replace(clear, holm_p=0.01, interval=Interval(-1.0, 1.0)).marked


def test_signs() -> None:
    assert [signed(value, 1) for value in (0.84, -0.2, 0.0, -0.04, 0.04)] == ["+0.8", "-0.2", "0.0", "0.0", "0.0"]
