"""The sentences about study 1 say what its results say, computed here in another way."""

from __future__ import annotations

import csv
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
OURS, R_DROP = "blur(sigma_max=2.0)+consistency(weight=1.0)", "r-drop(weight=0.6,p=0.1)"
LONGER = "longer(lr=0.5,decay=1.0,times=2)"
#: With wrong labels, where all methods ran in the same kernels.
LONGER_THERE, R_DROP_THERE = "longer(lr=1.0,decay=0.2,times=2)", "r-drop(weight=3.0,p=0.1)"
EQUAL_TIME = "longer(lr=0.5,decay=1.0,times=1.35)"
ALONE, TWICE = "blur(sigma_max=2.0)", "blur(sigma_max=2.0)+consistency(weight=0.0,task=mean)"


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", [str(EVIDENCE), *sys.path])
    yield importlib.import_module("findings")
    for name in ("findings", "wrong_labels", "wording", "claims", "plan", "tables"):
        sys.modules.pop(name, None)


def rows(folder: str = "confirm") -> list[dict[str, str]]:
    path = EVIDENCE / "results" / f"cifar10-20pct-{folder}" / "results.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(method: str, name: str, folder: str = "confirm") -> np.ndarray:
    own = [row for row in rows(folder) if row["method"] == method and row["part"] == "runs"]
    return np.array([float(row[name]) for row in sorted(own, key=lambda row: int(row["seed"]))])


def corrected(method: str, baseline: str, folder: str = "confirm", score: str = "accuracy") -> tuple[str, int]:
    """A difference with its interval after Holm's correction, and the step of it."""
    others = {row["method"] for row in rows(folder) if row["part"] == "runs"} - {baseline}
    base = column(baseline, f"test_{score}", folder)
    apart = {name: 100 * (column(name, f"test_{score}", folder) - base) for name in others}
    smallest_first = sorted(others, key=lambda name: stats.ttest_1samp(apart[name], 0).pvalue)
    step, ours = len(others) - smallest_first.index(method), apart[method]
    assert len(ours) == 10
    half = stats.t.ppf(1 - 0.025 / step, 9) * ours.std(ddof=1) / 10**0.5
    return f"{ours.mean():+.1f} points [{ours.mean() - half:+.1f}, {ours.mean() + half:+.1f}]", step


def test_differences_are_paired_and_corrected_over_all_eleven(findings: Any) -> None:
    shown, step = corrected(OURS, R_DROP)
    assert step > 1 and len({row["method"] for row in rows()}) == 12
    assert f"{shown} over tuned R-Drop" in findings.sentences()["best"]


def test_controls_say_how_much_each_part_adds(findings: Any) -> None:
    said = findings.controls()
    shown = corrected(OURS, EQUAL_TIME, "controls")[0]
    assert f"{shown} over `none` with 1.35 times the epochs, at " in said["equal time"]
    ours, longer, none = (column(one, "gpu_seconds", "controls").mean() for one in (OURS, EQUAL_TIME, "none"))
    # By its own step, and by that of `none`, which computes the same.
    assert f"at {ours / longer:.2f} to {ours / (1.35 * none):.2f} of its GPU time" in said["equal time"]
    parts = [(ALONE, "none"), (TWICE, ALONE), (OURS, TWICE)]
    places = [said["parts"].index(corrected(*pair, "controls")[0]) for pair in parts]
    assert places == sorted(places)


def test_a_method_that_is_not_better_at_equal_time_needs_another_sentence(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings.is_better(findings._study(EQUAL_TIME, findings.CONTROLS), OURS)
    assert not findings.is_better(findings._study(OURS, findings.CONTROLS), EQUAL_TIME)
    assert not findings.is_better(findings._study(EQUAL_TIME, findings.CONTROLS), TWICE)
    monkeypatch.setattr(findings, "is_better", lambda study, label: False)
    with pytest.raises(SystemExit, match="write the sentences anew"):
        findings.controls()


def test_the_controls_are_compared_with_the_confirming_runs() -> None:
    for method in ("none", OURS):
        assert np.array_equal(column(method, "test_accuracy"), column(method, "test_accuracy", "controls"))


def test_with_all_settings_r_drop_is_compared_by_the_seeds_of_both(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_seed: dict[str, dict[str, float]] = {}
    for row in rows("wide"):
        if row["part"] == "runs" and row["test_accuracy"]:
            of_a_seed.setdefault(row["method"], {})[row["seed"]] = 100 * float(row["test_accuracy"])
    heavier = next(method for method in of_a_seed if method.startswith("r-drop("))
    assert len(of_a_seed) == 7 and heavier == "r-drop(weight=3.0,p=0.1)"
    apart = {
        method: np.array([found[seed] - of_a_seed[heavier][seed] for seed in found if seed in of_a_seed[heavier]])
        for method, found in of_a_seed.items()
        if method != heavier
    }
    smallest_first = sorted(apart, key=lambda method: stats.ttest_1samp(apart[method], 0).pvalue)
    ours, step = apart[OURS], len(apart) - smallest_first.index(OURS)
    half = stats.t.ppf(1 - 0.025 / step, len(ours) - 1) * ours.std(ddof=1) / len(ours) ** 0.5
    shown = (
        f"{ours.mean():+.1f} points [{ours.mean() - half:+.1f}, {ours.mean() + half:+.1f}] better ({len(ours)} seeds)"
    )
    assert f"a weight of 3 for R-Drop, and our method is {shown}" in findings.all_settings()
    monkeypatch.setattr(findings, "is_better", lambda study, label: False)
    with pytest.raises(SystemExit, match="H3 is withdrawn"):
        findings.all_settings()


def test_a_method_that_helps_alone_needs_another_sentence(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.claims, "is_of_the_paper", lambda name: findings.claims.is_called("longer"))
    with pytest.raises(SystemExit, match="write its sentence anew"):
        findings.sentences()


def test_times_are_those_of_whole_runs(findings: Any) -> None:
    seconds = {one: column(one, "gpu_seconds").mean() for one in (OURS, R_DROP, LONGER, "none")}
    said = findings.sentences()
    assert f"at {seconds[OURS] / seconds[R_DROP]:.2f} of its GPU time" in said["best"]
    assert f"takes {seconds[LONGER] / seconds[OURS]:.1f} times as long" in said["against"]
    condition = findings.controls()["condition"]
    assert f"two passes take {seconds[OURS] / seconds['none']:.2f} times as long as `none`" in condition
    # In study 1, `none`, `longer` and R-Drop ran in torch's slower attention. With wrong labels, all have our kernels.
    longer, r_drop = "longer(lr=1.0,decay=0.2,times=2)", "r-drop(weight=3.0,p=0.1)"
    same = {one: column(one, "gpu_seconds", "noise").mean() for one in (OURS, r_drop, longer, "none")}
    assert f"for both (with wrong labels), they took {same[OURS] / same['none']:.2f} times as long" in condition
    assert same[OURS] / same["none"] > 1.35  # so the epochs that were compared take less than equal time
    assert f"({same[OURS] / same[r_drop]:.2f} if both use the kernels of this library, " in said["best"]
    assert f"({same[longer] / same[OURS]:.1f} times in the same kernels)" in said["against"]


def test_times_in_different_kernels_need_other_sentences(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = sys.modules["wrong_labels"]
    with monkeypatch.context() as patch:
        patch.setattr(labels, "FOLDER", findings.WIDE)  # where methods without a spec have torch's attention
        with pytest.raises(SystemExit, match="different kernels"):
            labels.same_kernels()
    monkeypatch.setattr(findings, "time_ratio", lambda study, label, other, digits=2: "1.3")
    with pytest.raises(SystemExit, match="no dearer in the same kernels"):
        findings.controls()


def test_calibration_has_corrected_intervals(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, r_drop, said in (
        ("confirm", R_DROP, findings.sentences()["calibration"]),
        ("noise", "r-drop(weight=3.0,p=0.1)", sys.modules["wrong_labels"].sentences()["calibration"]),
    ):
        error = {one: f"{100 * column(one, 'test_ece', folder).mean():.1f} %" for one in (OURS, "none", r_drop)}
        to_none = corrected(OURS, "none", folder, "ece")[0]
        assert f"is {error[OURS]}. The difference to `none` ({error['none']}) is {to_none}, to" in said
        # (An end that rounds to zero has no sign.)
        to_r_drop = corrected(OURS, r_drop, folder, "ece")[0].replace("+0.0", "0.0").replace("-0.0", "0.0")
        assert f"to R-Drop ({error[r_drop]}) {to_r_drop}. Less is better." in said
    wording = sys.modules["wording"]
    for label in (LONGER, "blur(sigma_max=0.5)"):  # better calibrated; not resolved
        with pytest.raises(SystemExit, match="is not worse than that of none"):
            wording.calibration(findings.FOLDER, label, R_DROP)


def test_other_settings_are_compared_with_those_of_the_screen(findings: Any) -> None:
    pairs = {
        "none(lr=1.0,decay=5.0)": "none",
        "dropkey(p=0.4)": "dropkey(p=0.05)",
        "r-drop(weight=3.0,p=0.1)": R_DROP,
        "hard(p=0.1,k=5)": "hard(p=0.2,k=5)",
        ALONE: "blur(sigma_max=0.5)",
    }
    apart = {
        new: 100 * (column(new, "test_accuracy", "wide") - column(old, "test_accuracy")) for new, old in pairs.items()
    }
    largest_first = sorted(pairs, key=lambda name: -stats.ttest_1samp(apart[name], 0).pvalue)
    lines = findings.settings_changed().splitlines()
    assert len(lines) == 5
    for line, (new, old) in zip(lines, pairs.items(), strict=True):
        assert line.startswith(f"  - `{new}` to `{old}`: {apart[new].mean():+.1f} points [")
    new = largest_first[-1]  # the smallest p value is corrected for all five
    half = stats.t.ppf(1 - 0.025 / 5, 9) * apart[new].std(ddof=1) / 10**0.5
    assert f"[{apart[new].mean() - half:+.1f}, {apart[new].mean() + half:+.1f}]" in lines[list(pairs).index(new)]


def test_the_lead_of_twice_the_epochs_is_its_difference_turned_around(findings: Any) -> None:
    shown, _ = corrected(OURS, LONGER)
    mean, low, high = (float(number) for number in re.findall(r"[-+][\d.]+", shown))
    assert max(mean, low, high) < 0
    assert f"is {-mean:.1f} points [{-high:.1f}, {-low:.1f}] better" in findings.sentences()["against"]
    for baseline, label in ((R_DROP, OURS), ("none", "hard(p=0.2,k=5)")):  # better; worse, but not certainly
        with pytest.raises(SystemExit, match="write the sentence anew"):
            findings._lead_of_longer(findings._study(baseline), label)


def test_the_page_of_claims_says_that_more_epochs_win(findings: Any) -> None:
    said = findings.claims.beside_scarce()
    mean, low, high = (float(number) for number in re.findall(r"[-+]\d\.\d\d", said))
    assert f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}]" == corrected(OURS, LONGER)[0]
    assert "**loses**" in said and f"to `{LONGER}`, corrected over all 11 comparisons" in said


def test_other_pages_tell_the_same(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = findings.in_short()
    assert f"loss gains {corrected(OURS, 'none')[0]}." in said
    assert f"gains more: {corrected(LONGER, 'none')[0]}." in said
    monkeypatch.setattr(findings, "is_better", lambda study, label: False)
    with pytest.raises(SystemExit, match="write the sentence anew"):
        findings.in_short()


def test_what_speaks_against_the_methods_comes_first_in_the_readme(findings: Any) -> None:
    first, second, wrong, third = findings.short().splitlines()
    assert (
        first.startswith("- **With right labels, more epochs gain more than any method.**") and "show no gain" in first
    )
    assert OURS in second and "twice the epochs" in second and "calibration error" in second
    wider = corrected(OURS, "r-drop(weight=3.0,p=0.1)", "wide")[0]
    assert f"(with all six settings of both tried: {wider})" in second
    gpu = {one: column(one, "gpu_seconds", "noise").mean() for one in (OURS, LONGER_THERE, R_DROP_THERE)}
    assert f"over tuned R-Drop at {gpu[OURS] / gpu[R_DROP_THERE]:.2f} of its GPU time" in second
    assert f"takes {gpu[LONGER_THERE] / gpu[OURS]:.1f} times as long." in second
    assert f"{wider} better" in findings.all_settings() and findings.all_settings() in findings.bullets()
    assert "40 % wrong labels" in wrong and "failed" in wrong
    assert "only where a second pass is cheap and `none` is slow" in third
    with (findings.METHODS_COST).open(newline="", encoding="utf-8") as file:
        costs = [float(row["cost"]) for row in csv.DictReader(file) if row["method"] == "blur+consistency"]
    assert len(costs) == 2 and all(f"{cost:.2f} times" in findings.bullets() for cost in costs)


def test_with_wrong_labels_the_failed_claim_comes_first(findings: Any) -> None:
    labels = sys.modules["wrong_labels"]
    longer, r_drop = LONGER_THERE, R_DROP_THERE
    over = {other: corrected(OURS, other, "noise")[0] for other in ("none", longer, r_drop)}
    time = {one: column(one, "gpu_seconds", "noise").mean() for one in (OURS, longer, r_drop)}
    said = labels.sentences()
    first = labels.bullets().splitlines()[0]
    assert first.startswith("- **Our claim H4 is not earned.**") and f"our method is {over[r_drop]} better" in first
    assert f"gains {over['none']} over `none`, and {over[r_drop]} over tuned R-Drop at " in said["gain"]
    assert f"at {time[OURS] / time[r_drop]:.2f} of its GPU time" in said["gain"]
    assert f"{over[longer]} over `none` with twice the epochs, at {time[OURS] / time[longer]:.2f} of" in said["longer"]
    for method in ("dropout(p=0.1)", "dropkey(p=0.3)", "tailhard(share=0.5,p=0.5,k=5,weight=3.0)"):
        assert f"`{method}` {corrected(method, 'none', 'noise')[0]}" in said["others"]
    assert f"{100 * column(OURS, 'test_ece', 'noise').mean():.1f} %" in said["calibration"]
    for text in (labels.short("x/"), labels.in_short()):
        assert f"gains {over['none']}" in text
    assert f"twice the epochs gain less: {corrected(longer, 'none', 'noise')[0]}." in labels.in_short()


def test_other_results_with_wrong_labels_need_other_sentences(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = sys.modules["wrong_labels"]
    with monkeypatch.context() as patch:
        patch.setattr(labels, "is_better", lambda study, label: study.methods[0].label != "none")
        with pytest.raises(SystemExit, match="is not better than none: write the sentences anew"):
            labels.short("")
    with monkeypatch.context() as patch:
        patch.setattr(labels, "picked", lambda study, is_one: "r-drop(weight=3.0,p=0.1)")
        patch.setattr(labels, "is_better", lambda study, label: True)
        with pytest.raises(SystemExit, match="the best is r-drop"):
            labels.in_short()
    with monkeypatch.context() as patch:
        earned = [[*row[:-1], "**earned**"] for row in labels.claims.headlines()]
        patch.setattr(labels.claims, "headlines", lambda: earned)
        with pytest.raises(SystemExit, match="H4 is"):
            labels.sentences()
