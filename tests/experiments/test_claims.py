"""The page of claims: what is compared, what the correction counts, and what earns a claim."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from .made_results import CONTROL, DROPOUT, OTHER, OURS, R_DROP, cells_of, publish


def scarce(claims: Any, ours: float, seeds: int = 10) -> list[str]:
    """H3, if the chosen one of ours has this test accuracy, and the best of the others 0.72."""
    screen = {OURS: (0.75, 0.1), OTHER: (0.74, 0.9), R_DROP: (0.73, 0.1), CONTROL: (0.76, 0.9), DROPOUT: (0.70, 0.9)}
    publish(claims.studies.RESULTS / "cifar10-20pct-screen", screen, 3)
    tested = {OURS: (0.1, ours), OTHER: (0.9, 0.9), R_DROP: (0.1, 0.72), CONTROL: (0.9, 0.9), DROPOUT: (0.9, 0.9)}
    publish(claims.studies.RESULTS / "cifar10-20pct-confirm", tested, seeds)
    return cells_of(claims.headline_table(), "H3")


def test_a_claim_is_earned_by_reaching_its_figure_with_an_interval_above_zero(claims: Any) -> None:
    """The screen's validation scores choose both methods; test scores and controls do not."""
    found = scarce(claims, 0.74)
    assert found[3:6] == [f"`{OURS}`", f"`{R_DROP}`", "10"]
    assert found[1] == "CIFAR-10, 20 %: over the best of dropout, DropKey, R-Drop"
    assert found[6].startswith("+2.00 [+") and found[7] == "**earned**"


def test_what_a_search_chose_is_ours_whatever_the_screen_prefers(claims: Any) -> None:
    scarce(claims, 0.74)
    study = dataclasses.replace(claims.SCARCE, searched=OTHER)
    assert study.pick(claims.is_ours).label == claims.SCARCE.ours().label == OURS
    assert study.ours().label == OTHER
    assert dataclasses.replace(study, searched=claims.studies.SEARCHED).ours() is None  # no other one in its place


def test_the_claim_that_is_tried_again_has_runs_of_its_own(claims: Any) -> None:
    ours, tested = claims.studies.SEARCHED, {R_DROP: (0.9, 0.55), OTHER: (0.95, 0.9)}
    publish(claims.studies.RESULTS / "cifar10-20pct-noise", tested | {ours: (0.9, 0.6)}, 10)
    assert cells_of(claims.headline_table(), "H8")[7] == "not measured"
    publish(claims.studies.RESULTS / "cifar10-20pct-noise-again", tested | {ours: (0.6, 0.6)}, 10)
    found = cells_of(claims.headline_table(), "H8")
    assert found[3:5] == [f"`{ours}`", f"`{R_DROP}`"] and found[7] == "**earned**"


def test_a_part_of_ours_beside_another_method_makes_it_ours(claims: Any) -> None:
    for label, is_ours in (
        ("r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.5)", True),
        ("shorter(times=0.66)+blur(sigma_max=2.0)", True),
        (R_DROP, False),
        (DROPOUT, False),
    ):
        assert claims.is_ours(claims.Runs(label)) is is_ours
        assert claims.is_called("r-drop")(claims.Runs(label)) is (label == R_DROP)


@pytest.mark.parametrize(
    ("ours", "seeds", "words"),
    [
        (0.734, 10, "not earned: below the figure"),
        (0.7205, 10, "not earned: the interval includes zero or less"),
        (0.70, 10, "not earned: the interval includes zero or less"),
        (0.74, 9, "not complete: 9 of 10 seeds"),
    ],
)
def test_what_does_not_earn_a_claim(claims: Any, ours: float, seeds: int, words: str) -> None:
    assert scarce(claims, ours, seeds)[7] == words


def test_the_first_sentence_counts(claims: Any) -> None:
    start = "**Of 8 headline claims, "
    assert claims.summary().startswith(
        f"{start}0 failed, 8 are not measured or not complete, and 0 are earned. Of 16 comparisons of the paper, 0 are "
        "not reproduced, 0 are not resolved, 16 are not measured, 0 are reproduced. "
    )
    assert claims.summary().endswith(f" {claims.other_claims.counted(claims.others())}**")
    assert {claims.others()[name].verdict for name in ("P12", "P13")} == {"not measured"}
    scarce(claims, 0.74)
    assert claims.summary().startswith(f"{start}0 failed, 7 are not measured or not complete, and 1 is earned (H3). ")
    scarce(claims, 0.70)
    assert claims.summary().startswith(f"{start}1 failed (H3), 7 are not measured or not complete, and 0 are earned. ")


def test_claims_that_were_not_measured_count_in_the_correction(claims: Any) -> None:
    scarce(claims, 0.74)
    study, _, is_other = claims.HEADLINES["H3"]
    one = claims.paired_difference(study.ours().test, study.pick(is_other).test)
    (alone,) = claims.corrected([one])
    nothing = claims.Difference(0.0, None, None, 1.0, (), ())
    wide = claims.corrected([one, *[nothing] * 7])[0].times(100)
    assert wide.holm_interval.low < 100 * alone.holm_interval.low
    assert cells_of(claims.headline_table(), "H3")[6].endswith(wide.holm_interval.text(2))
    assert [cells_of(claims.headline_table(), f"H{n}")[7] for n in (1, 2, 4, 5, 6, 7)] == ["not measured"] * 6
    # One seed has no p value.
    publish(claims.studies.RESULTS / "cifar10-20pct-noise", {OURS: (0.6, 0.6), R_DROP: (0.5, 0.5)}, 1)
    assert cells_of(claims.headline_table(), "H4")[7] == "not complete: 1 of 10 seeds"
    assert cells_of(claims.headline_table(), "H3")[6].endswith(wide.holm_interval.text(2))


def test_a_claim_that_is_open_changes_no_other_one(claims: Any) -> None:
    scarce(claims, 0.74)
    alone = cells_of(claims.headline_table(), "H3")[6]
    publish(claims.studies.RESULTS / "cifar10-20pct-noise", {OURS: (0.6, 0.9), R_DROP: (0.5, 0.5)}, 9)
    assert cells_of(claims.headline_table(), "H4")[5:] == ["9", "", "not complete: 9 of 10 seeds"]
    assert cells_of(claims.headline_table(), "H3")[6] == alone


def test_only_a_weight_of_zero_makes_a_control(claims: Any) -> None:
    is_one = claims.is_called("r-drop")
    assert is_one(claims.Runs("r-drop(weight=0.05,p=0.1)")) and not is_one(claims.Runs(CONTROL))


def test_comparisons_of_the_paper(claims: Any) -> None:
    blur = "blur(sigma_max=0.5)"
    hidden, rising = "hard(p=0.05,k=5,fill=-inf)", "blur(sigma_max=linear(start=0.0,end=0.3))"
    tested = {DROPOUT: (0.7, 0.71), R_DROP: (0.7, 0.72), OTHER: (0.7, 0.7125), blur: (0.7, 0.70), OURS: (0.7, 0.74)}
    # What was not tested, or is not as the paper has it, does not count, however good it is.
    publish(
        claims.studies.RESULTS / "cifar10-20pct-screen",
        tested | {hidden: (0.9, 0.9), rising: (0.9, 0.9), "hard(p=0.1,k=5)": (0.8, 0.9)},
        3,
    )
    publish(
        claims.studies.RESULTS / "cifar10-20pct-confirm",
        tested | {hidden: (0.9, 0.9), rising: (0.9, 0.9)},
        10,
        {OTHER: 0.03, blur: 0.08},
    )
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in claims.comparisons.table().splitlines()[2:]
    ]
    found = {(cells[2].replace("`", ""), cells[3]): cells[6] for cells in lines if cells[1] == "CIFAR-10, 20 %"}
    assert found == {
        ("hard - dropout", "accuracy"): "not resolved",
        ("blur - dropout", "accuracy"): "not reproduced",
        ("blur+consistency - r-drop", "accuracy"): "reproduced",
        ("hard - r-drop", "accuracy"): "not reproduced",
        ("blur - r-drop", "accuracy"): "not reproduced",
        ("hard - dropout", "ECE"): "reproduced",
        ("blur - dropout", "ECE"): "not reproduced",
        ("blur+consistency - r-drop", "ECE"): "not reproduced",
    }
    assert {cells[6] for cells in lines if cells[1] == "CIFAR-100"} == {"not measured"}
    assert {cells[1]: cells[0] for cells in lines if cells[2:4] == ["`hard` - `dropout`", "accuracy"]} == {
        "CIFAR-10, 20 %": "P1",
        "CIFAR-100": "P2",
    }


def publish_translation(claims: Any, tested: dict[str, tuple[float, float]], seeds: int = 10) -> None:
    """The same with BLEU."""
    folder = claims.studies.RESULTS / "multi30k-en-de"
    publish(folder, tested, seeds)
    path = folder / "results.csv"
    path.write_text(path.read_text().replace("_accuracy", "_bleu"))


@pytest.mark.parametrize(
    ("of_r_drop", "words", "counted"),
    [
        (37.5, "**earned**, but by R-Drop, a part of the method", "1 is earned (H5 by R-Drop, a part of its method)"),
        (36.0, "**earned**", "2 are earned (H5, H6)"),  # H6, too: R-Drop alone is no better than `none`
    ],
)
def test_a_claim_that_r_drop_would_earn_without_us_says_so(
    claims: Any, of_r_drop: float, words: str, counted: str
) -> None:
    r_drop, ours = "r-drop(weight=3.0,p=0.1)", claims.studies.SEARCHED_IN_TEXT
    publish_translation(claims, {"none": (41.0, 35.8), r_drop: (43.0, of_r_drop), ours: (43.0, 37.4995)})
    assert cells_of(claims.headline_table(), "H5")[7] == words
    failed = " failed (H6), 6 are" if of_r_drop > 37 else "0 failed, 6 are"
    assert f"{failed} not measured or not complete, and {counted}. " in claims.summary()


def test_translation_is_compared_with_the_better_of_dropout_and_none(claims: Any) -> None:
    """P6. It is judged when all six comparisons have their seeds: the correction counts them all."""
    none, r_drop, blur = "none(lr=1.0,decay=0.2)", "r-drop(weight=3.0,p=0.1)", "blur(sigma_max=0.5)"
    tested = {none: (41.0, 36.0), DROPOUT: (39.0, 38.9), r_drop: (43.0, 37.5), OURS: (40.0, 37.0), blur: (40.0, 35.9)}

    def judged(tested: dict[str, tuple[float, float]], seeds: int) -> Any:
        publish_translation(claims, tested, seeds)
        return claims.others()["P6"]

    found = judged(tested, 10)
    assert found.verdict == "not measured"
    assert "do not have 10 seeds yet: `hard` - `dropout`, `hard` - `r-drop`. WMT14" in found.found
    tested["hard(p=0.1,k=5)"] = (40.0, 35.0)
    assert judged(tested, 9).verdict == "not measured"
    found = judged(tested, 10)
    assert found.verdict == "reproduced in part"
    assert f"BLEU (`dropout` is `{none}` there): `hard`" in found.found
    assert "`blur+consistency` - `dropout` +1.00 [" in found.found and "`r-drop` -0.50 [" in found.found
    assert found.found.startswith("Multi30k reproduces 1 of 6 comparisons. The intervals of 5 are below zero. BLEU (")
    assert found.found.endswith(claims.comparisons.NOT_BLUR_ALONE)
    two = judged(tested | {blur: (40.0, 37.0)}, 10).found
    assert two.startswith("Multi30k reproduces 2 of 6") and claims.comparisons.NOT_BLUR_ALONE not in two
    near = judged(tested | {blur: (40.0, 35.9999)}, 10).found  # below zero, but not its interval
    assert near.startswith("Multi30k reproduces 1 of 6 comparisons. The intervals of 4 are below zero.")
    ours = claims.studies.SEARCHED_IN_TEXT
    judged(tested | {ours: (42.0, 40.0)}, 10)
    assert [cells_of(claims.headline_table(), name)[3:5] for name in ("H5", "H6")] == [
        [f"`{ours}`", f"`{none}`"],
        [f"`{ours}`", f"`{r_drop}`"],
    ]


def test_a_calibration_error_that_is_not_lower_is_not_reproduced(claims: Any) -> None:
    """As P7 of the protocol says. An accuracy with the same interval is not resolved."""
    scores = {seed: float(seed % 2) * 4 - 2 for seed in range(10)}
    (wide,) = claims.corrected([claims.paired_difference(scores, dict.fromkeys(scores, 0.0))])
    assert wide.holm_interval.low < -0.3 and wide.holm_interval.high > 0.3
    assert claims.comparisons.reproduced(wide, is_ece=True) == "not reproduced"
    assert claims.comparisons.reproduced(wide, is_ece=False) == "not resolved"


def test_no_difference_of_more_than_a_margin_is_not_reproduced(claims: Any) -> None:
    """An interval around zero is a failure within 0.3 points. Beyond them, on either side, it leaves the claim open."""
    small = {seed: float(seed % 2) * 0.1 - 0.05 for seed in range(10)}
    words = []
    for shift in (-0.25, 0.0, 0.25):
        wider = {seed: value * (1 if shift == 0 else 10) + shift / 2 for seed, value in small.items()}
        (found,) = claims.corrected([claims.paired_difference(wider, dict.fromkeys(wider, 0.0))])
        assert found.holm_interval.low < 0 < found.holm_interval.high
        words.append(claims.comparisons.reproduced(found, is_ece=False))
    assert words == ["not resolved", "not reproduced", "not resolved"]


def test_equal_means_equal_for_the_whole_family(claims: Any) -> None:
    """Holm's correction does not widen the interval with the largest p value."""
    scores = {seed: 0.35 * (-1) ** seed for seed in range(10)}
    none = dict.fromkeys(scores, 0.0)
    near, far = (claims.paired_difference({s: x + by for s, x in scores.items()}, none) for by in (0, 5))
    (alone,), (*_, last) = claims.corrected([near]), claims.corrected([far, far, far, near])
    assert last.holm_interval == alone.holm_interval and last.holm_interval.within(0.3)
    assert [claims.comparisons.reproduced(one, is_ece=False) for one in (alone, last)] == [
        "not reproduced",
        "not resolved",
    ]


def test_curves_are_those_of_the_confirmed_methods(claims: Any) -> None:
    """The screen's validation scores choose among settings of a method, here as in the comparisons."""
    hard, blur = "hard(p=0.2,k=5)", "blur(sigma_max=0.5)"
    tested = {"none": (0.7, 0.71), hard: (0.7, 0.71), blur: (0.7, 0.7), OURS: (0.7, 0.74)}
    others = {"hard(p=0.5,k=5,fill=-inf)": (0.9, 0.9), "hard(p=0.1,k=5)": (0.6, 0.9)}
    publish(claims.studies.RESULTS / "cifar10-20pct-screen", tested | others, 3)
    publish(claims.studies.RESULTS / "cifar10-20pct-confirm", tested | others, 10)
    assert claims.confirmed() == {"none": "none", "hard": hard, "blur": blur, "blur+consistency": OURS}
    found = claims.others()
    assert found["P12"].verdict == "reproduced in part" and found["P13"].verdict == "reproduced"
    assert found["P12"].found.endswith("`blur+consistency` +1.7 [+0.4, +2.9]")
    assert len(claims.convergence_table().splitlines()) == 5 and "+1.7 [+0.4, +2.9]" in claims.convergence_table()
    assert cells_of(claims.training_loss_table(), "`blur+consistency` - `none`")[6] == "reproduced"
    # The comparisons count for P9: both are below dropout here, and their ECE is the same.
    publish(claims.studies.RESULTS / "cifar10-20pct-confirm", tested | {DROPOUT: (0.7, 0.75)}, 10)
    publish(claims.studies.RESULTS / "cifar10-20pct-screen", tested | {DROPOUT: (0.7, 0.75)}, 3)
    assert claims.others()["P9"].found.endswith("Not reproduced: P1, P3, P7, P8")
