"""The sentences about Multi30k say what its results say, computed here in another way."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
R_DROP, PAPER = "r-drop(weight=3.0,p=0.1)", "blur(sigma_max=0.5)+consistency(weight=0.5)"
BASE, SEARCHED = "none(lr=1.0,decay=0.2)", "blur(sigma_max=2.0)+consistency(weight=3.0)"


@pytest.fixture
def translation(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("translation")


def rows(part: str, folder: str = "multi30k-en-de") -> list[dict[str, str]]:
    with (EVIDENCE / "results" / folder / "results.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["part"] == part]


def apart(method: str, baseline: str = BASE) -> np.ndarray:
    """The differences to `none` or to another method, with the seeds that both have."""
    one, other = (
        {row["seed"]: float(row["test_bleu"]) for row in rows("runs") if row["method"] == label and row["test_bleu"]}
        for label in (method, baseline)
    )
    return np.array([one[seed] - other[seed] for seed in one if seed in other])


def corrected(label: str, baseline: str = BASE) -> str:
    """A difference as the page writes it, with Holm's interval over all methods of the table."""
    labels = {row["method"] for row in rows("runs") if row["test_bleu"]} - {baseline}
    labels = {other for other in labels if len(apart(other, baseline)) > 1}
    p_values = {other: stats.ttest_1samp(apart(other, baseline), 0).pvalue for other in labels}
    smallest_first = sorted(labels, key=p_values.__getitem__)
    steps = [p_values[other] * (len(labels) - before) for before, other in enumerate(smallest_first)]
    adjusted = max(steps[: smallest_first.index(label) + 1])  # never smaller than that of a smaller p value
    found = apart(label, baseline)
    level = 0.05 * p_values[label] / adjusted
    half = stats.t.ppf(1 - level / 2, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5
    mean, low, high = (
        "0.00" if round(one, 2) == 0 else f"{one:+.2f}"
        for one in (found.mean(), found.mean() - half, found.mean() + half)
    )
    return f"{mean} BLEU [{low}, {high}] ({len(found)} seeds)"


def test_differences_are_paired_and_corrected(translation: Any) -> None:
    said = translation.bullets()
    assert f"**R-Drop gains {corrected(R_DROP)}." in said
    assert f"the difference of `{SEARCHED}` to `none` is {corrected(SEARCHED)}" in said
    assert f"which has 0.3, is {corrected('dropout(p=0.1)')}" in said
    assert f"hard masking: {corrected('hard(p=0.1,k=5)')}; blur: {corrected('blur(sigma_max=0.5)')}. DropKey" in said
    assert f"does harm: {corrected('dropkey(p=0.2)')}" in said
    two_passes = "r-drop(weight=0.0,p=0.3)"
    assert (
        f"`{PAPER}`, gains {corrected(PAPER)}; to R-Drop, that is {corrected(PAPER, R_DROP)}; to two passes without a "
        f"loss, {corrected(PAPER, two_passes)}." in said
    )
    beside = "r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3)"
    assert f"`{beside}`, to R-Drop: {corrected(beside, R_DROP)}" in said
    assert f"not told apart from `none`: {corrected(two_passes)}" in said
    first, second = (apart(beside, other).std(ddof=1) for other in (BASE, R_DROP))
    assert f"deviate by {first:.2f} BLEU (H5) and {second:.2f} BLEU (H6). " in said


def _first(method: str) -> float:
    """The sum of the differences to `none` with the seeds 0 to 4."""
    scores = {(row["method"], row["seed"]): row["test_bleu"] for row in rows("runs")}
    return sum(float(scores[method, str(seed)]) - float(scores[BASE, str(seed)]) for seed in range(5))


def test_the_page_of_claims_gives_r_drop_its_due(
    docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = docs_module("claims")
    ours, longer = claims.studies.SEARCHED_IN_TEXT, "longer(lr=1.0,decay=0.2,times=2)"
    found = [corrected(*pair).partition(" (")[0] for pair in ((R_DROP,), (ours,), (ours, longer))]
    said = claims.beside_translation()
    assert said.startswith("- **H5 is no success of ours.**")
    assert f"(0.3), R-Drop alone is {found[0]}, and the method {found[1]}; to `none` with twice the epochs" in said
    assert f"the method is {found[2]}. (" in said
    late = [f"{(apart(one).mean() * 10 - _first(one)) / 5:+.2f}" for one in (ours, R_DROP)]
    assert f"With the seeds from 5 on, which nobody had seen then, the method is {late[0]} BLEU and R-Drop " in said
    assert f" {late[1]} BLEU better than `none` (means" in said
    (h6,) = (row for row in claims.headlines() if row[0] == "H6")
    assert f"- **H6 failed**: what the blur adds to R-Drop is {h6[6]} BLEU." in said
    weights = np.exp(-0.5 * (np.arange(-1, 2) / 0.3) ** 2)
    assert f"gives a neighbour at most {100 * weights[0] / weights.sum():.1f} % of the weight" in said
    with monkeypatch.context() as other:
        other.setattr(claims.translation_claims, "owes_r_drop", lambda *_: False)
        with pytest.raises(SystemExit, match="is better than R-Drop alone"):
            claims.beside_translation()
    monkeypatch.setattr(claims.translation_claims.wording, "is_better", lambda *_: False)
    with pytest.raises(SystemExit, match="is not better than longer"):
        claims.beside_translation()


def test_how_far_it_is_comes_first(translation: Any) -> None:
    """Without the methods that were stopped."""
    stopped = {SEARCHED, "dropout(p=0.1)", "hard(p=0.1,k=5,fill=-inf)+consistency(weight=0.5)"}
    going = [row for row in rows("runs") if row["method"] not in stopped]
    done, runs = sum(row["status"] == "finished" for row in going), len(going)
    assert done == runs  # the next test is about a study that is not complete
    first, _, _, fourth, *_ = translation.bullets().splitlines()
    assert f"The study is complete: all {runs} runs of {runs // 10} methods are done. " in first
    assert f"{len(stopped)} others were [stopped](" in first and "intervals do not take into account" in first
    assert SEARCHED in fourth and "worse here with every seed" in fourth
    found = apart(SEARCHED)
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5
    assert (found < 0).all() and f"the interval is [{found.mean() - half:+.2f}, {found.mean() + half:+.2f}]" in fourth


def test_a_study_that_is_not_complete_says_so(translation: Any) -> None:
    study = translation.tables.read(translation.FOLDER)
    methods = [dataclasses.replace(one, scores={}) if one.label == PAPER else one for one in study.methods]
    said = translation._progress(dataclasses.replace(study, methods=methods))
    assert said == "**The study is not complete**: 80 of 90 runs of 9 methods are done. It judges no claim yet."


def test_other_pages_say_the_worst_of_it(translation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stop when it is not so any more."""
    said = translation.in_short()
    assert "no method of ours was shown to be better than R-Drop" in said
    assert said.endswith(f"worse there with each of {'three' if len(apart(SEARCHED)) == 3 else 'other'} seeds.")
    monkeypatch.setattr(translation.studies, "SEARCHED", R_DROP)
    with pytest.raises(SystemExit, match="write its sentence anew"):
        translation.in_short()


def test_trials_of_methods_without_runs_and_equal_trials_are_told(
    translation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = {row["method"]: float(row["validation_bleu"]) for row in rows("tuning")}
    assert len(trials) == 30
    run = {row["method"] for row in rows("runs") if row["status"] == "finished"}
    left = {row["method"] for row in rows("runs")} - run
    assert len(left) == 1
    said = translation.bullets()
    for label in left:
        assert f"`{label}` {trials[label]:.1f}" in said
        kind = {part.partition("(")[0] for part in label.split("+")}
        same = [one for one in trials if {part.partition("(")[0] for part in one.split("+")} == kind]
        assert trials[label] == max(trials[one] for one in same if ("-inf" in one) == ("-inf" in label))
    equal = [trials[label] for label in translation.SAME]
    assert f"had {min(equal):.1f} to {max(equal):.1f} BLEU" in said
    monkeypatch.setattr(translation, "_trial", lambda label: 50.0 if "hard" in label else 40.0)
    with pytest.raises(SystemExit, match="is above none in its trials"):
        translation.bullets()


def test_what_was_stopped_stands_for_no_method_of_the_paper(
    translation: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even if the validation part prefers it."""
    studies, other = translation.studies, "blur(sigma_max=0.5)+consistency(weight=0.5)"
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    (tmp_path / studies.TRANSLATION.folder).mkdir()
    lines = ["method,seed,part,status,test_bleu,validation_bleu"]
    lines += [f'"{label}",0,runs,finished,30,{score}' for label, score in ((SEARCHED, 40), (other, 39))]
    (tmp_path / studies.TRANSLATION.folder / "results.csv").write_text("\n".join(lines), encoding="utf-8")
    assert studies.TRANSLATION.pick(studies.is_of_the_paper("blur+consistency")).label == other
    assert studies.TRANSLATION.named(SEARCHED) is not None


def test_other_results_need_other_sentences(translation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation.studies, "SEARCHED", "r-drop(weight=3.0,p=0.1)")  # better than none
    with pytest.raises(SystemExit, match="write its sentence anew"):
        translation.bullets()


@pytest.mark.parametrize(
    ("label", "mean", "marked"),
    [
        (R_DROP, 1.0, False),
        ("dropout(p=0.1)", 1.0, True),
        ("dropkey(p=0.2)", -1.0, False),
        ("hard(p=0.1,k=5)", 1.0, True),
        ("blur(sigma_max=0.5)", -1.0, True),
        (PAPER, -1.0, True),
        ("longer(lr=1.0,decay=0.2,times=2)", 1.0, True),
        ("r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3)", 1.0, True),
        ("r-drop(weight=0.0,p=0.3)", 1.0, True),
    ],
)
def test_other_differences_need_other_sentences(
    translation: Any, monkeypatch: pytest.MonkeyPatch, label: str, mean: float, marked: bool
) -> None:
    read = translation.tables.read

    def changed(*given: Any) -> Any:
        study = read(*given)
        own = next(one for one in study.methods if one.label == label)
        if own.difference is None:
            return study
        ends = sorted((math.copysign(0.1, mean), math.copysign(2.0, mean)))
        interval = dataclasses.replace(own.difference.interval, low=ends[0], high=ends[1])
        apart = dataclasses.replace(
            own.difference, mean=mean, holm_p=0.0 if marked else 1.0, interval=interval, holm_interval=interval
        )
        assert apart.marked == marked
        methods = [dataclasses.replace(one, difference=apart) if one is own else one for one in study.methods]
        return dataclasses.replace(study, methods=methods)

    monkeypatch.setattr(translation.tables, "read", changed)
    with pytest.raises(SystemExit, match="differs in another way"):
        translation.bullets()


@pytest.mark.parametrize("to", [R_DROP, "r-drop(weight=0.0,p=0.3)"])
def test_no_difference_to_another_one_needs_another_sentence(
    translation: Any, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    read = translation.tables.read

    def changed(folder: Path, baseline: str | None = None, *more: Any) -> Any:
        study = read(folder, baseline, *more)
        if baseline != to:
            return study
        methods = [
            dataclasses.replace(one, difference=dataclasses.replace(one.difference, holm_p=1.0))
            if one.label == PAPER
            else one
            for one in study.methods
        ]
        return dataclasses.replace(study, methods=methods)

    monkeypatch.setattr(translation.tables, "read", changed)
    with pytest.raises(SystemExit, match=r"weight=0.5\) differs in another way from " + re.escape(to)):
        translation.bullets()


def test_a_method_in_its_trials_needs_a_sentence(translation: Any) -> None:
    study = translation.tables.read(translation.FOLDER)
    without = [one for one in study.methods if one.label != "blur(sigma_max=0.5)"]
    with pytest.raises(SystemExit, match="have done their trials"):
        translation._progress(dataclasses.replace(study, methods=without))


def test_the_search_names_the_best_mean_of_each_kind(translation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scores: dict[str, list[float]] = {}
    for row in rows("ablation", "multi30k-search"):
        scores.setdefault(row["method"], []).append(float(row["validation_bleu"]))
    assert {len(each) for each in scores.values()} == {2}
    means = {method: np.mean(each) for method, each in scores.items()}
    ours, r_drop = (
        max((one for one in means if is_one(one)), key=means.__getitem__)
        for is_one in (
            lambda one: any(part in one for part in ("blur(", "hard(", "noise(")),
            lambda one: one.startswith("r-drop(") and "+" not in one,
        )
    )
    table = np.array(list(scores.values()))
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    free = len(table) - 1
    half = stats.t.ppf(0.975, free) * np.sqrt((rest**2).sum() / free)  # two runs on each side: sqrt((1 + 1) / 2) = 1
    said = translation.searched()

    def change(one: str, other: str) -> str:
        mean = means[one] - means[other]
        return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"

    assert f"`{r_drop}`, as the trials had chosen it: {means[r_drop]:.1f} BLEU, {change(r_drop, 'none')} to" in said
    assert f"The best of ours, `{ours}`, is the same with a weak blur beside it: {change(ours, r_drop)} to it" in said
    assert f"`noise(sigma=0.5)` {change(f'{r_drop}+noise(sigma=0.5)', r_drop)}" in said
    assert ours == translation.studies.TRANSLATION.searched
    monkeypatch.setattr(translation.studies, "SEARCHED_IN_TEXT", r_drop)
    with pytest.raises(SystemExit, match="SEARCHED_IN_TEXT anew"):
        translation.searched()


def test_times_are_told_when_steps_were_timed(
    translation: Any, docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = docs_module("translation_claims")
    folder = Path(shutil.copytree(translation.FOLDER, tmp_path / translation.FOLDER.name))
    monkeypatch.setattr(translation, "FOLDER", folder)
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))

    def timed(longer: str, others: str) -> None:
        for row in found:
            row["gpu_seconds"] = longer if row["method"].startswith("longer(") else others
        with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)

    timed("", "")
    assert translation.times() == "Steps were not timed alone yet, so the table has no GPU time."
    assert translation.share_of_longer() is None and "So it is open whether" in beside._times()
    timed("40.0", "38.0")
    assert translation.times().startswith("GPU seconds of a run are its steps")
    assert translation.share_of_longer() == "0.95"
    assert beside._times() == "The method takes 0.95 of the GPU time of twice the epochs."


@pytest.mark.parametrize(
    ("label", "more", "message"),
    [
        ("dropout(p=0.2)", 1.0, "or dropout helps"),
        ("r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3)", 1.0, "our method differs from R-Drop"),
        ("r-drop(weight=5.0,p=0.1)", 0.3, "which the trials did not choose"),
    ],
)
def test_another_end_of_the_search_needs_other_sentences(
    translation: Any, monkeypatch: pytest.MonkeyPatch, label: str, more: float, message: str
) -> None:
    known = translation.ranking()
    changed = {seed: score + more for seed, score in known.found.scores[label].items()}
    found = dataclasses.replace(known.found, scores=known.found.scores | {label: changed})
    monkeypatch.setattr(translation, "ranking", lambda: dataclasses.replace(known, found=found))
    with pytest.raises(SystemExit, match=message):
        translation.searched()
