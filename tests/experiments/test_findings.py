"""The sentences about study 1 say what its results say, computed here in another way."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
#: What the search chose, and what the screen had chosen before it.
BEST, OURS = (f"blur(sigma_max=2.0)+consistency(weight={weight})" for weight in (3.0, 1.0))
R_DROP = "r-drop(weight=0.6,p=0.1)"
LONGER = "longer(lr=0.5,decay=1.0,times=2)"
NOISE = EVIDENCE / "records" / "cifar10-20pct-noise.tar.gz"
#: With wrong labels, where all methods ran in the same kernels.
LONGER_THERE, R_DROP_THERE = "longer(lr=1.0,decay=0.2,times=2)", "r-drop(weight=3.0,p=0.1)"
EQUAL_TIME = "longer(lr=0.5,decay=1.0,times=1.55)"
ALONE, TWICE = "blur(sigma_max=2.0)", "blur(sigma_max=2.0)+consistency(weight=0.0,task=mean)"


@pytest.fixture
def findings(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("findings")


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


def test_differences_are_paired_and_corrected_over_all_twelve(findings: Any) -> None:
    shown, step = corrected(BEST, R_DROP)
    assert step > 1 and len({row["method"] for row in rows()}) == 13
    said = findings.sentences()
    assert f"{shown} over tuned R-Drop" in said["best"]
    assert f"adds {corrected(BEST, OURS)[0]} to `{OURS}`" in said["weight"]


def test_controls_say_how_much_each_part_adds(findings: Any) -> None:
    said = findings.parts()
    parts = [(ALONE, "none"), (TWICE, ALONE), (OURS, TWICE)]
    places = [said.index(corrected(*pair, "controls")[0]) for pair in parts]
    assert places == sorted(places)


def test_equal_time_is_that_of_the_same_kernels(findings: Any) -> None:
    said = findings.equal_time()
    ours, longer, none = (column(one, "gpu_seconds", "equal").mean() for one in (BEST, EQUAL_TIME, "none"))
    shown = corrected(BEST, EQUAL_TIME, "equal")[0]
    assert f"{shown} over `none` with 1.55 times the epochs, at {ours / longer:.2f} of its GPU time" in said["gain"]
    assert f"Twice the epochs take {2 * none / ours:.2f} times as long as our method" in said["twice"]
    assert f"two passes take {ours / none:.2f} times as long as one" in said["condition"]


def test_a_method_that_is_not_better_at_equal_time_needs_another_sentence(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings.is_better(findings._study(EQUAL_TIME, findings.EQUAL), BEST)
    assert not findings.is_better(findings._study(BEST, findings.EQUAL), EQUAL_TIME)
    assert not findings.is_better(findings._study(BEST, findings.EQUAL), "none")
    monkeypatch.setattr(findings, "is_better", lambda study, label: False)
    with pytest.raises(SystemExit, match="write the sentences anew"):
        findings.equal_time()


def test_the_controls_are_compared_with_the_confirming_runs() -> None:
    for method in ("none", OURS):
        assert np.array_equal(column(method, "test_accuracy"), column(method, "test_accuracy", "controls"))


def test_with_all_settings_r_drop_is_compared_by_the_seeds_of_both(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {name: column(name, "test_accuracy", "wide") for name in {row["method"] for row in rows("wide")}}
    scores = {name: each for name, each in scores.items() if len(each)} | {BEST: column(BEST, "test_accuracy")}
    r_drop = scores.pop("r-drop(weight=3.0,p=0.1)")
    apart = {name: 100 * (each - r_drop) for name, each in scores.items()}
    # Holm over what the search chose and all methods of the table.
    smallest_first = sorted(apart, key=lambda name: stats.ttest_1samp(apart[name], 0).pvalue)
    assert len(apart) == 7
    shown = []
    for name in (BEST, OURS):
        each, step = apart[name], 7 - smallest_first.index(name)
        half = stats.t.ppf(1 - 0.025 / step, 9) * each.std(ddof=1) / 10**0.5
        shown.append(f"{each.mean():+.1f} points [{each.mean() - half:+.1f}, {each.mean() + half:+.1f}]")
    assert f"a weight of 3 for R-Drop. Our method is {shown[0]} better than that" in findings.all_settings()
    assert f"{shown[1]} (10 seeds)" in findings.all_settings() and findings.all_settings() in findings.bullets()
    paired = findings.paired_difference
    monkeypatch.setattr(findings, "paired_difference", lambda one, other: paired(other, one))
    with pytest.raises(SystemExit, match="H3 is withdrawn"):
        findings.all_settings()


def test_a_method_that_helps_alone_needs_another_sentence(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.studies, "is_of_the_paper", lambda name: findings.studies.is_called("longer"))
    with pytest.raises(SystemExit, match="write its sentence anew"):
        findings.sentences()


def test_times_in_different_kernels_need_other_sentences(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = sys.modules["wrong_labels"]
    monkeypatch.setattr(labels, "FOLDER", findings.WIDE)  # where methods without a spec have torch's attention
    with pytest.raises(SystemExit, match="different kernels"):
        labels.same_kernels()


def test_calibration_has_corrected_intervals(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, ours, r_drop, longer, said in (
        ("confirm", BEST, R_DROP, LONGER, findings.sentences()["calibration"]),
        ("noise", OURS, R_DROP_THERE, LONGER_THERE, sys.modules["wrong_labels"].sentences()["calibration"]),
    ):
        error = {one: f"{100 * column(one, 'test_ece', folder).mean():.1f} %" for one in (ours, "none", r_drop, longer)}
        to_none = corrected(ours, "none", folder, "ece")[0]
        assert f"is {error[ours]}. The difference to `none` ({error['none']}) is {to_none}, to" in said
        # (An end that rounds to zero has no sign.)
        to_r_drop = corrected(ours, r_drop, folder, "ece")[0].replace("+0.0", "0.0").replace("-0.0", "0.0")
        to_longer = corrected(ours, longer, folder, "ece")[0]
        assert f"to R-Drop ({error[r_drop]}) {to_r_drop}, to twice the epochs ({error[longer]}) {to_longer}." in said
    wording = sys.modules["wording"]
    for label in (LONGER, "blur(sigma_max=0.5)"):  # better calibrated; not resolved
        with pytest.raises(SystemExit, match="is not worse than that of none"):
            wording.calibration(findings.FOLDER, label, R_DROP, LONGER)


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


def test_twice_the_epochs_are_told_first(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = findings.sentences()["longer"]
    assert said.startswith("**Our best method is not better than twice the epochs")
    assert f"gain {corrected(LONGER, 'none')[0]} over `none`" in said
    assert f"our method to them is {corrected(BEST, LONGER)[0]}" in said
    monkeypatch.setattr(findings.studies, "SEARCHED", OURS)  # it loses against twice the epochs
    with pytest.raises(SystemExit, match="differs from twice the epochs"):
        findings.sentences()


def test_the_page_of_claims_names_twice_the_epochs(findings: Any) -> None:
    said = sys.modules["claims"].beside_scarce()
    mean, low, high = (float(number) for number in re.findall(r"[-+]\d\.\d\d", said))
    assert f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}]" == corrected(BEST, LONGER)[0]
    assert "**is not told apart**" in said and f"to `{LONGER}`, corrected over all 12 comparisons" in said


def test_other_pages_tell_the_same(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = findings.in_short()
    assert f"loss of weight 3 (`ad.presets.vision()`) gains {corrected(BEST, 'none')[0]}." in said
    assert f"which gain {corrected(LONGER, 'none')[0]}." in said
    assert said.endswith("\n".join(f"- {sys.modules[name].in_short()}" for name in ("translation", "cifar_100")))
    monkeypatch.setattr(findings, "is_better", lambda study, label: False)
    with pytest.raises(SystemExit, match="write the sentence anew"):
        findings.in_short()


def test_times_are_those_of_the_same_kernels(findings: Any) -> None:
    gpu = {one: column(one, "gpu_seconds", "noise").mean() for one in (BEST, R_DROP_THERE)}
    said = findings.sentences()["best"]
    assert f"over tuned R-Drop at about {gpu[BEST] / gpu[R_DROP_THERE]:.2f} of its GPU time" in said
    with findings.second_pass.METHODS.open(newline="", encoding="utf-8") as file:
        every = {(row["model"], row["method"]): float(row["cost"]) for row in csv.DictReader(file)}
    for model in ("small", "vit-b16"):
        ours = every[model, "blur+consistency"]
        assert f"{ours / every[model, 'none']:.2f} times" in findings.bullets()
        assert f"{ours / every[model, 'r-drop']:.2f} with " in said


def test_how_far_repeated_trials_are_apart(findings: Any) -> None:
    first, again = (
        {
            row["method"]: 100 * float(row["validation_accuracy"])
            for row in rows(folder)
            if row["part"] == "tuning" and row["status"] == "finished"
        }
        for folder in ("screen", "wide")
    )
    apart = np.array([first[label] - again[label] for label in first if label in again])
    assert len(apart) > 20
    said = f"{len(apart)} trials were made twice with the same settings and the same seed, and rounding alone gives a"
    deviation = np.sqrt((apart**2).mean() / 2)  # of one trial: the difference has twice its variance
    assert f"{said} trial a standard deviation of {deviation:.1f} points" in findings.bullets()


def test_a_trial_that_diverged_has_no_score(findings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen goes on, and its later methods have high learning rates, too."""
    said = findings.sentences()["trials"]
    text = (findings.SCREEN / "results.csv").read_text(encoding="utf-8")
    (tmp_path / "results.csv").write_text(f"{text}mixup,1000,tuning,diverged\n", encoding="utf-8")
    monkeypatch.setattr(findings, "SCREEN", tmp_path)
    assert findings.sentences()["trials"] == said


def test_what_twice_the_epochs_take_to_two_passes(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, second_pass = sys.modules["wrong_labels"], findings.second_pass
    two, one = (column(label, "gpu_seconds", "equal").mean() for label in (BEST, "none"))
    assert second_pass.in_study_1() == pytest.approx(two / one, abs=1e-4)
    assert second_pass.in_translation() == pytest.approx(12.89 / 6.12)  # as its file has it
    said = labels.sentences()["longer"]
    assert f"two passes take {two / one:.2f} to 1.90 times as long" in said and "they take 2.1 times" in said
    with monkeypatch.context() as patch:
        patch.setattr(second_pass, "with_other_models", lambda: (1.5, 2.0))
        with pytest.raises(SystemExit, match="write their sentence anew"):
            labels.sentences()
    monkeypatch.setattr(second_pass, "in_translation", lambda: 1.9)
    with pytest.raises(SystemExit, match="write their sentence anew"):
        labels.sentences()


def test_times_of_equal_work_show_how_exact_times_are(findings: Any) -> None:
    light, heavy = (column(label, "gpu_seconds", "noise").mean() for label in (OURS, BEST))
    said = sys.modules["wrong_labels"].sentences()["times"]
    assert f"differ by {100 * abs(light / heavy - 1):.0f} %" in said and f"`{OURS}` and `{BEST}`" in said


def test_models_that_are_not_sure_enough(
    findings: Any, program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Accuracy minus mean confidence of every run, from its reliability diagram."""
    program.unpack(EVIDENCE / "records" / "cifar10-20pct-confirm.tar.gz", tmp_path)
    apart: dict[str, dict[int, float]] = {}
    for file in (tmp_path / "runs").glob("*/*/result.json"):
        request = json.loads(file.with_name("run.json").read_text(encoding="utf-8"))
        bins = json.loads(file.read_text(encoding="utf-8"))["reliability"]
        right, sure, count = (np.array(bins[name], float) for name in ("accuracy", "confidence", "count"))
        accuracy, confidence = (np.nansum(each * count) / count.sum() for each in (right, sure))
        apart.setdefault(request["method"], {})[request["seed"]] = 100 * (accuracy - confidence)
        scored = column(request["method"], "test_accuracy")[request["seed"] - 100]
        assert accuracy == pytest.approx(scored)  # the bins have all predictions
    mean = {label: np.mean(list(each.values())) for label, each in apart.items()}
    said = findings.sentences()["calibration"]
    assert (
        f"its accuracy is {mean[BEST]:.1f} points above its mean confidence (that of `none` {mean['none']:.1f}" in said
    )
    assert f"With twice the epochs, this distance is {mean[LONGER]:+.1f} points, so its predictions err to both" in said
    sureness = findings.sureness
    with monkeypatch.context() as patch:
        patch.setattr(sureness, "gaps", lambda records: apart | {BEST: dict.fromkeys(apart[BEST], 1.0)})
        with pytest.raises(SystemExit, match="have other signs"):
            findings.sentences()
    with monkeypatch.context() as patch:
        patch.setattr(sureness, "gaps", lambda records: apart | {"none": dict.fromkeys(apart["none"], 9.0)})
        with pytest.raises(SystemExit, match="is not less sure than none"):
            findings.sentences()
    count, least = sureness.all_not_sure_enough("cifar10-20pct-noise")
    assert f"All {count} models" in sys.modules["wrong_labels"].sentences()["calibration"]
    assert count == 100 and least == min(min(each.values()) for each in sureness.gaps(NOISE).values()) > 17
    with pytest.raises(SystemExit, match="some models are too sure"):
        sureness.all_not_sure_enough("cifar10-20pct-confirm")


def test_the_page_of_claims_says_how_dropout_and_blur_do_against_no_method(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparisons = sys.modules["comparisons"]
    said = comparisons.remark()
    for label in ("dropout(p=0.05)", "blur(sigma_max=0.5)"):
        assert f"({corrected(label, 'none')[0]})".replace("+0.0", "0.0") in said.replace("+0.0", "0.0")
    with monkeypatch.context() as patch:
        is_called = comparisons.is_called
        patch.setattr(comparisons, "is_called", lambda name: is_called("longer" if name == "dropout" else name))
        with pytest.raises(SystemExit, match="dropout has a higher mean than none"):
            comparisons.remark()
    monkeypatch.setattr(comparisons.wording, "is_better", lambda study, label: True)
    with pytest.raises(SystemExit, match="write this anew"):
        comparisons.remark()


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
    assert not any(method in said["others"] for method in (OURS, BEST, LONGER_THERE, R_DROP_THERE))  # told above
    assert f"{100 * column(OURS, 'test_ece', 'noise').mean():.1f} %" in said["calibration"]
    assert f"of weight 1 gains {over['none']}" in labels.in_short()
    assert f"A weight of 3 gains {corrected(BEST, 'none', 'noise')[0]}." in labels.in_short()
    assert f"twice the epochs gain less: {corrected(longer, 'none', 'noise')[0]}." in labels.in_short()


def test_a_method_that_joined_later_earns_no_claim(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, studies = sys.modules["wrong_labels"], findings.studies
    assert studies.NOISY.pick(studies.is_ours).label == OURS  # though the validation part prefers the other one
    assert column(BEST, "validation_accuracy", "noise").mean() > column(OURS, "validation_accuracy", "noise").mean()
    over = {other: corrected(BEST, other, "noise")[0] for other in ("none", R_DROP_THERE, LONGER_THERE, OURS)}
    time = {one: column(one, "gpu_seconds", "noise").mean() for one in (BEST, LONGER_THERE, R_DROP_THERE)}
    said = labels.sentences()["searched"]
    assert f"`{BEST}` gains {over['none']} over `none`, {over[R_DROP_THERE]} over tuned R-Drop at " in said
    assert f"{time[BEST] / time[R_DROP_THERE]:.2f} of its GPU time, {over[LONGER_THERE]} over twice the epochs" in said
    assert f"{time[BEST] / time[LONGER_THERE]:.2f} of their GPU time, and {over[OURS]} over a weight of 1" in said
    assert "it earns no claim" in said
    _, _, heavy = labels.sentences()["calibration"].partition("With a weight of 3")
    assert all(corrected(BEST, one, "noise", "ece")[0] in heavy for one in ("none", R_DROP_THERE, LONGER_THERE))
    with monkeypatch.context() as patch:
        patch.setattr(labels, "is_better", lambda study, label: study.methods[0].label != OURS)
        with pytest.raises(SystemExit, match=re.escape(f"{BEST} is not better than {OURS}: write")):
            labels.sentences()
    monkeypatch.setattr(studies, "SEARCHED", "tailhard(share=0.5,p=0.5,k=5,weight=3.0)")
    with pytest.raises(SystemExit, match="write the sentences anew"):
        labels.sentences()


def test_other_results_with_wrong_labels_need_other_sentences(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = sys.modules["wrong_labels"]
    with monkeypatch.context() as patch:
        patch.setattr(labels, "is_better", lambda study, label: study.methods[0].label != "none")
        with pytest.raises(SystemExit, match="is not better than none: write the sentences anew"):
            labels.in_short()
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
