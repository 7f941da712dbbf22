"""The table of the front page says what the studies found of the preset, computed here in another way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attentiondrop as ad

from .made_results import write_results
from .published import scores

OURS = str(ad.presets.vision())


@pytest.fixture
def preset(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("vision_preset")


def apart(folder: str, name: str, other: str, factor: float) -> str:
    """The difference with its interval, corrected over all comparisons with the same method."""
    every = scores(folder, name)
    base = every.pop(other)
    pairs = {
        label: factor * np.array([own[seed] - base[seed] for seed in own if seed in base])
        for label, own in every.items()
    }
    if len(pairs[OURS]) < 3:
        return "-"  # two seeds are no basis for a number in bold
    pairs = {label: each for label, each in pairs.items() if len(each) > 1}
    smallest_first = sorted(pairs, key=lambda label: stats.ttest_1samp(pairs[label], 0).pvalue)
    ours, step = pairs[OURS], len(pairs) - smallest_first.index(OURS)
    half = stats.t.ppf(1 - 0.025 / step, len(ours) - 1) * ours.std(ddof=1) / len(ours) ** 0.5
    mean = f"{ours.mean():+.1f}"
    marked = f"**{mean}**" if half < abs(ours.mean()) else mean
    return f"{marked} [{ours.mean() - half:+.1f}, {ours.mean() + half:+.1f}]"


def cells(table: str, words: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if words in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("words", "folder", "name", "factor", "others"),
    [
        (
            "9,000 images",
            "cifar10-20pct-confirm",
            "test_accuracy",
            100,
            ("none", "r-drop(weight=0.6,p=0.1)", "longer(lr=0.5,decay=1.0,times=2)"),
        ),
        (
            "labels wrong",
            "cifar10-20pct-noise",
            "test_accuracy",
            100,
            ("none", "r-drop(weight=3.0,p=0.1)", "longer(lr=1.0,decay=0.2,times=2)"),
        ),
        (
            "Multi30k",
            "multi30k-en-de",
            "test_bleu",
            1,
            ("none(lr=1.0,decay=0.2)", "r-drop(weight=3.0,p=0.1)", "longer(lr=1.0,decay=0.2,times=2)"),
        ),
    ],
)
def test_every_difference_is_corrected_over_the_comparisons_with_the_same_method(
    preset: Any, words: str, folder: str, name: str, factor: float, others: tuple[str, ...]
) -> None:
    data, *found, error = cells(preset.table("x/"), words)
    assert found == [apart(folder, name, other, factor) for other in others]
    seeds = len(scores(folder, name)[OURS])
    assert "](x/" in data and f"({seeds}" in data
    assert error == (apart(folder, "test_ece", others[0], 100) if name == "test_accuracy" else "-")


@pytest.mark.parametrize(
    ("seeds", "missing", "begun", "told"),
    [
        (3, None, False, True),
        (3, None, True, False),
        (2, None, False, False),
        (3, "longer(times=2)", False, False),
        (3, OURS, False, False),
    ],
)
def test_a_study_that_has_begun_has_no_row_yet(
    preset: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeds: int,
    missing: str | None,
    begun: bool,
    told: bool,
) -> None:
    monkeypatch.setattr(preset.studies, "RESULTS", tmp_path)
    methods = [one for one in (OURS, "none", "r-drop(weight=0.3,p=0.1)", "longer(times=2)") if one != missing]
    rows = [(one, seed, "runs", "finished", 0.7, 0.7) for one in methods for seed in range(seeds)]
    write_results(tmp_path / "new", rows + [("dropout", 0, "runs", "missing")] * begun)
    assert preset.can_be_told(preset.studies.Study("new")) is told


def test_what_speaks_against_the_preset_comes_first(preset: Any) -> None:
    first, *_, failed = preset.front_page().splitlines()
    assert (
        first.startswith("**On 20 % of CIFAR-10, hard masking alone")
        and "show no gain" in first
        and "worse than no method with each" in first
    )
    assert "not better than twice the epochs" in first
    assert "claim" in failed and "**failed**" in failed


def test_each_difference_to_r_drop_is_that_of_its_words(preset: Any) -> None:
    def mean(ours: dict[str, float], other: dict[str, float]) -> str:
        return f"{100 * np.mean([ours[seed] - other[seed] for seed in ours]):+.1f} points ["

    noisy, wide = (scores(f"cifar10-20pct-{name}", "test_accuracy") for name in ("noise", "wide"))
    light, r_drop = "blur(sigma_max=2.0)+consistency(weight=1.0)", "r-drop(weight=3.0,p=0.1)"
    *_, settings, failed = preset.front_page().splitlines()
    assert f"the difference is {mean(noisy[light], noisy[r_drop])}" in failed
    confirmed = scores("cifar10-20pct-confirm", "test_accuracy")[OURS]
    assert f"the first difference to it is {mean(confirmed, wide[r_drop])}" in settings
    assert f"With equal tuning the difference is {mean(wide[light], wide[r_drop])}" in settings


def test_another_preset_or_an_earned_claim_needs_another_page(preset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(preset, "vision", lambda: ad.BlurSmoothing(sigma_max=0.5))
        with pytest.raises(SystemExit, match="write the table anew"):
            preset.table()
    earned = [[*row[:-1], "**earned**"] for row in preset.claims.headlines()]
    monkeypatch.setattr(preset.claims, "headlines", lambda: earned)
    with pytest.raises(SystemExit, match="write the sentence about it anew"):
        preset.front_page()


def test_the_front_page_says_where_the_preset_is_better_than_twice_the_epochs(
    preset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "`ad.presets.vision()` is not better than twice the epochs without a method"
    monkeypatch.setattr(preset.cifar_100, "over_longer", lambda: None)
    monkeypatch.setattr(preset.more_studies, "over_longer", dict)
    for is_told in (False, True):
        monkeypatch.setattr(preset, "can_be_told", lambda study, is_told=is_told: is_told)
        assert preset.to_twice_the_epochs() == f"{start} if labels are right."
    found = {"50 percent of CIFAR-10": "+0.4 points [+0.1, +0.7]", "Transfer from CIFAR-100": None}
    monkeypatch.setattr(preset.more_studies, "over_longer", lambda: found)
    elsewhere = f"{start} on 20 % of CIFAR-10. It is better in {{}} other studies of images with right labels: "
    half = "50 percent of CIFAR-10 (+0.4 points [+0.1, +0.7])."
    assert preset.to_twice_the_epochs() == elsewhere.format("1 of 3") + half
    monkeypatch.setattr(preset.cifar_100, "over_longer", lambda: "+1.4 points [+1.0, +1.8]")
    said = f"{elsewhere.format('2 of 3')}CIFAR-100 (+1.4 points [+1.0, +1.8]), {half}"
    assert preset.to_twice_the_epochs() == said
    monkeypatch.setattr(preset, "can_be_told", lambda study: study is preset.studies.SCARCE)
    assert preset.to_twice_the_epochs() == elsewhere.format("1 of 2") + half  # CIFAR-100 is not complete
    assert preset.to_twice_the_epochs() in preset.front_page()


def test_runs_that_failed_are_counted_in_the_row(preset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preset.studies, "RESULTS", tmp_path)
    methods = ("none", "r-drop(weight=0.3,p=0.1)", "longer(times=2)", OURS)
    study = preset.studies.Study("new")

    def cells(failed: dict[str, int]) -> list[str]:
        rows = [
            (one, seed, "runs", "diverged")
            if seed < failed.get(one, 0)
            else (one, seed, "runs", "finished", 0.7 + 0.001 * (seed * len(one) % 4), 0.7)
            for one in methods
            for seed in range(5)
        ]
        write_results(tmp_path / "new", rows)
        (tmp_path / "new" / "recipe.yaml").write_text("recipe: {task: classification}\n", encoding="utf-8")
        assert preset.can_be_told(study)
        found: list[str] = preset.row(preset.Measured("new", "new.md", study), "")
        return found

    assert cells({})[0] == "[new](new.md) (5)"
    some = cells({OURS: 1})
    assert some[0] == "[new](new.md) (4 of 5)" and "[" in some[1]
    assert cells({OURS: 5}) == ["[new](new.md) (0 of 5)", "-", "-", "-", "-"]
    rival = cells({"r-drop(weight=0.3,p=0.1)": 5})
    assert rival[2] == "-" and "[" in rival[1]
