"""The headline claims about CIFAR-100: their GPU time, their first seeds, and what an unfinished study may say."""

from __future__ import annotations

from typing import Any

import pytest

from .made_results import DROPOUT, OTHER, OURS, R_DROP, cells_of, publish, write_results

LONGER = "longer(lr=1.0,decay=1.0,times=2)"
TAIL = "tailhard(share=0.25,p=0.5,k=5,weight=1.0)"


@pytest.mark.parametrize(
    ("cheap", "seconds", "words"),
    [
        (0.745, {TAIL: 20, R_DROP: 30}, "**earned**"),
        (0.735, {TAIL: 20, R_DROP: 30}, "not earned: below the figure"),
        (0.745, {TAIL: 21, R_DROP: 30}, f"not earned: 0.70 of the GPU time of `{R_DROP}`"),
        (0.745, {TAIL: 20}, "not complete: GPU time was not measured"),
        (0.745, {R_DROP: 30}, "not complete: GPU time was not measured"),
    ],
)
def test_the_last_claim_asks_for_the_gain_of_r_drop_at_two_thirds_of_its_time(
    claims: Any, cheap: float, seconds: dict[str, float], words: str
) -> None:
    tested = {"none": (0.7, 0.72), R_DROP: (0.72, 0.74), OURS: (0.9, 0.9), TAIL: (0.75, cheap)}
    publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds=seconds)
    found = cells_of(claims.headline_table(), "H7")
    assert found[3:5] == [f"`{TAIL}`", "`none`"] and found[7] == words


def test_a_method_with_two_passes_and_fewer_epochs_may_earn_the_last_claim(claims: Any) -> None:
    fewer = f"shorter(times=0.66)+{OURS}"
    tested = {"none": (0.7, 0.72), R_DROP: (0.72, 0.74), OURS: (0.9, 0.9), fewer: (0.75, 0.75)}
    publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds={fewer: 20, R_DROP: 30})
    found = cells_of(claims.headline_table(), "H7")
    assert found[3:5] == [f"`{fewer}`", "`none`"] and found[7] == "**earned**"


def test_without_r_drop_its_gain_is_not_known(claims: Any) -> None:
    publish(claims.studies.RESULTS / "cifar100", {"none": (0.7, 0.72), TAIL: (0.75, 0.75)}, 10)
    assert cells_of(claims.headline_table(), "H7")[7] == "not complete: the gain of R-Drop was not measured"


@pytest.mark.parametrize(("name", "other"), [("H1", "longer(lr=1.0,decay=1.0,times=2)"), ("H2", R_DROP)])
def test_claims_at_equal_time_look_at_the_time(claims: Any, name: str, other: str) -> None:
    tested = {"none": (0.7, 0.7), other: (0.71, 0.72), OURS: (0.9, 0.75)}
    for seconds, words in ((30, "**earned**"), (31, f"not earned: 1.03 of the GPU time of `{other}`")):
        publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds={OURS: seconds, other: 30})
        assert cells_of(claims.headline_table(), name)[7] == words


def test_a_method_without_r_drop_in_it_owes_nothing_to_it(claims: Any) -> None:
    tested = {"none": (0.7, 0.7), LONGER: (0.7, 0.72), R_DROP: (0.7, 0.76), OURS: (0.9, 0.75)}
    publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds={OURS: 30, LONGER: 30})
    assert cells_of(claims.headline_table(), "H1")[7] == "**earned**"


def test_on_cifar_100_an_r_drop_that_is_worse_than_no_method_is_no_rival(claims: Any) -> None:
    """The time that may be taken is still that of R-Drop."""
    tested = {"none": (0.7, 0.745), R_DROP: (0.69, 0.72), OURS: (0.9, 0.7495)}
    publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds={OURS: 30, R_DROP: 30, "none": 20})
    found = cells_of(claims.headline_table(), "H2")
    assert found[3:5] == [f"`{OURS}`", "`none`"] and found[7] == "not earned: below the figure"


GIVEN_UP = "not earned: not above half of the figure with its first 5 seeds"


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([0.49] * 5, GIVEN_UP),
        ([0.52] * 5, "not complete: 5 of 10 seeds"),
        ([-4] * 4, "not complete: 4 of 10 seeds"),
        ([0.4] * 5 + [3] * 5, GIVEN_UP),  # more seeds, which another claim needed, change nothing
        ([1.5] * 5 + [-3] * 4, "not complete: 9 of 10 seeds"),
        ([1.5] * 5 + [-3] * 5, "not earned: the interval includes zero or less"),
    ],
)
def test_the_first_seeds_of_a_claim_have_to_be_promising(claims: Any, gains: list[float], words: str) -> None:
    test = [0.7 + (gain + 0.01 * (-1) ** seed) / 100 for seed, gain in enumerate(gains)]
    scores = {LONGER: [0.7] * len(test), OURS: test}
    rows = [
        (label, seed, "runs", "finished", own[seed], 0.7) for label, own in scores.items() for seed in range(len(own))
    ]
    write_results(claims.studies.RESULTS / "cifar100", rows)
    found = cells_of(claims.headline_table(), "H1")
    assert found[7] == words
    assert bool(found[6]) != words.startswith("not complete")
    counted = "1 failed (H1), 7" if words.startswith("not earned") else "0 failed, 8"
    assert f"{counted} are not measured or not complete" in claims.summary()


def test_a_study_that_is_not_complete_judges_no_claim(claims: Any) -> None:
    """The validation part may prefer a method that has not run yet."""
    tested = {"none": (0.7, 0.7), LONGER: (0.7, 0.72), R_DROP: (0.7, 0.71), OURS: (0.9, 0.75), DROPOUT: (0.7, 0.7)}
    folder = claims.studies.RESULTS / "cifar100"
    publish(folder, tested, 10, seconds={OURS: 30, R_DROP: 30, LONGER: 30})
    assert [cells_of(claims.headline_table(), name)[7] for name in ("H1", "H2")] == ["**earned**"] * 2
    judged = [cells.split(" | ")[-1] for cells in claims.comparisons.table().splitlines() if "| CIFAR-100 |" in cells]
    assert "reproduced |" in judged
    publish(folder, tested, 10, seconds={OURS: 30, R_DROP: 30, LONGER: 30}, missing=(OTHER,))
    for name in ("H1", "H2", "H7"):
        assert cells_of(claims.headline_table(), name)[3:] == ["", "", "", "", "not complete: 51 of 52 runs"]
    judged = [cells.split(" | ")[-1] for cells in claims.comparisons.table().splitlines() if "| CIFAR-100 |" in cells]
    assert set(judged) == {"not measured |"}


def test_more_seeds_are_published_on_their_own_and_choose_nothing(claims: Any) -> None:
    tested = {LONGER: (0.7, 0.72), OURS: (0.9, 0.74), OTHER: (0.8, 0.9)}
    publish(claims.studies.RESULTS / "cifar100", tested, 5, seconds={OURS: 30, LONGER: 30})
    assert cells_of(claims.headline_table(), "H1")[5:] == ["5", "", "not complete: 5 of 10 seeds"]
    publish(claims.studies.RESULTS / "cifar100-more", {LONGER: (0.7, 0.72), OURS: (0.1, 0.74)}, 10, first_seed=5)
    found = cells_of(claims.headline_table(), "H1")
    assert found[3:6] == [f"`{OURS}`", f"`{LONGER}`", "10"] and found[7] == "**earned**"


@pytest.mark.parametrize(
    ("of_r_drop", "cheap", "need", "words"),
    [
        (0.70, 0.724, "+0.50 points", "not earned: not above half of the figure with its first 5 seeds"),
        (0.70, 0.73, "+0.50 points", "**earned**"),
        (0.728, 0.727, "+0.80 points", "not earned: below the figure"),
        (0.728, 0.729, "+0.80 points", "**earned**"),
    ],
)
def test_the_last_claim_asks_for_half_a_point_where_r_drop_gains_less(
    claims: Any, of_r_drop: float, cheap: float, need: str, words: str
) -> None:
    tested = {"none": (0.7, 0.72), R_DROP: (0.72, of_r_drop), TAIL: (0.75, cheap)}
    publish(claims.studies.RESULTS / "cifar100", tested, 10, seconds={TAIL: 20, R_DROP: 30})
    found = cells_of(claims.headline_table(), "H7")
    assert found[2] == need and found[7] == words


def test_what_our_search_chose_is_no_method_of_the_paper(claims: Any) -> None:
    searched = claims.studies.SEARCHED
    tested = {R_DROP: (0.7, 0.72), OURS: (0.7, 0.71), searched: (0.9, 0.9)}
    publish(claims.studies.RESULTS / "cifar100", tested, 5)
    (p4,) = (line for line in claims.comparisons.table().splitlines() if line.startswith("| P4 | CIFAR-100 "))
    assert p4.endswith("| not reproduced |")


def test_a_method_whose_runs_all_failed_was_measured(claims: Any) -> None:
    """The one run of hard masking diverged. Blur has no run."""
    publish(claims.studies.RESULTS / "cifar100", {"none": (0.7, 0.7), R_DROP: (0.7, 0.72), DROPOUT: (0.7, 0.71)}, 5)
    found = [line for line in claims.comparisons.table().splitlines() if "| CIFAR-100 |" in line]
    for said, words in (
        ("`hard` - `dropout` | accuracy", "all runs of a method failed | not resolved"),
        ("`blur` - `dropout` | accuracy", " | not measured"),
    ):
        (line,) = (line for line in found if said in line)
        assert line.endswith(f"| {said} |  | {words} |")


@pytest.mark.parametrize(
    ("label", "seed", "words"),
    [
        (OURS, 2, f"not earned: runs failed, 1 of `{OURS}`"),
        (OURS, 7, f"not earned: runs failed, 1 of `{OURS}`"),
        (LONGER, 7, f"not earned: runs failed, 1 of `{LONGER}`"),
        (R_DROP, 7, "**earned**"),
    ],
)
def test_a_claim_whose_runs_failed_does_not_stay_open(claims: Any, label: str, seed: int, words: str) -> None:
    """A diverged run is not repeated, so its ten seeds would never be complete."""
    tested = {LONGER: (0.7, 0.72), R_DROP: (0.7, 0.71), OURS: (0.9, 0.75)}
    folder = claims.studies.RESULTS / "cifar100"
    publish(folder, tested, 10, seconds={OURS: 30, LONGER: 30})
    file = folder / "results.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    shown = f'"{label}"' if "," in label else label
    (place,) = [index for index, line in enumerate(lines) if line.startswith(f"{shown},{seed},runs")]
    lines[place] = f"{shown},{seed},runs,diverged,,,,"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = cells_of(claims.headline_table(), "H1")
    assert found[7] == words and ("failed (H1" in claims.summary()) == words.startswith("not earned")


@pytest.mark.parametrize(("name", "label"), [("H1", LONGER), ("H2", R_DROP), ("H7", R_DROP)])
def test_a_claim_that_needs_a_method_whose_runs_all_failed_does_not_stay_open(
    claims: Any, name: str, label: str
) -> None:
    tested = {"none": (0.7, 0.7), LONGER: (0.7, 0.72), R_DROP: (0.7, 0.71), OURS: (0.9, 0.75), TAIL: (0.8, 0.74)}
    folder = claims.studies.RESULTS / "cifar100"
    publish(folder, tested, 10, seconds={OURS: 30, LONGER: 30, R_DROP: 30, TAIL: 20})
    assert cells_of(claims.headline_table(), name)[7] == "**earned**"
    file = folder / "results.csv"
    shown = f'"{label}"' if "," in label else label
    rows = [
        f"{shown},{line.removeprefix(shown).split(',')[1]},runs,diverged,,,," if line.startswith(f"{shown},") else line
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert cells_of(claims.headline_table(), name)[7] == f"not earned: all runs of `{label}` failed"


def test_later_seeds_that_are_not_complete_keep_a_claim_open(claims: Any) -> None:
    """The gain of R-Drop, which H7 asks for, is known when its later seeds are."""
    cheap, seconds = {"none": (0.7, 0.72), TAIL: (0.75, 0.745)}, {TAIL: 20, R_DROP: 30}
    publish(claims.studies.RESULTS / "cifar100", cheap | {R_DROP: (0.72, 0.74)}, 5, seconds=seconds)
    more = claims.studies.RESULTS / "cifar100-more"
    publish(more, cheap, 10, seconds=seconds, first_seed=5, missing=(R_DROP,))
    assert cells_of(claims.headline_table(), "H7")[7] == "not complete: 11 of 12 runs with later seeds"
    publish(more, cheap | {R_DROP: (0.72, 0.76)}, 10, seconds=seconds, first_seed=5)
    assert cells_of(claims.headline_table(), "H7")[7] == "not earned: below the figure"
    publish(claims.studies.RESULTS / "cifar100", {"none": (0.7, 0.72), TAIL: (0.75, 0.72), R_DROP: (0.72, 0.74)}, 5)
    publish(more, cheap, 10, seconds=seconds, first_seed=5, missing=(R_DROP,))
    assert cells_of(claims.headline_table(), "H7")[7] == GIVEN_UP  # later seeds change nothing
