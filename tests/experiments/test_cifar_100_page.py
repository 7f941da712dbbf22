"""The sentences about CIFAR-100 say what its results say, computed here in another way, however far the study is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from .made_results import write_results
from .published import RESULTS, scores

OURS, LONGER, R_DROP = "blur(sigma_max=2.0)+consistency(weight=3.0)", "longer(times=2)", "r-drop(weight=0.3,p=0.1)"
CONTROL, DROPOUT = "r-drop(weight=0.0,p=0.1)", "dropout(p=0.1)"
FOLDER = RESULTS / "cifar100"


@pytest.fixture
def page(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("cifar_100")


def is_control(label: str) -> bool:
    return label.startswith(("longer(", "r-drop(weight=0.0,"))


def test_every_difference_to_none_is_told_once(page: Any) -> None:
    """With Holm's interval over all methods that share two seeds with `none`."""
    found = scores("cifar100", "test_accuracy")
    none = found.pop("none")
    apart = {
        label: np.array([100 * (own[seed] - none[seed]) for seed in own if seed in none])
        for label, own in found.items()
    }
    apart = {label: each for label, each in apart.items() if len(each) > 1}
    smallest_first = sorted(apart, key=lambda label: stats.ttest_1samp(apart[label], 0).pvalue)
    said = page.bullets()
    starts: dict[str, list[str]] = {
        "Better than `none`": [],
        "Not told apart from `none`": [],
        "**Worse than `none`": [],
    }
    better, equal, worse = starts
    adjusted = 0.0
    for before, label in enumerate(smallest_first):
        each, p_value = apart[label], float(stats.ttest_1samp(apart[label], 0).pvalue)
        adjusted = max(adjusted, p_value * (len(apart) - before))  # never smaller than one before it
        half = stats.t.ppf(1 - 0.025 * p_value / adjusted, len(each) - 1) * each.std(ddof=1) / len(each) ** 0.5
        if len(each) < 3:
            (few,) = (line for line in said.splitlines() if line.startswith("- Fewer than three seeds"))
            assert f"`{label}`" in few
            continue
        interval = f"[{each.mean() - half:+.1f}, {each.mean() + half:+.1f}]"
        assert said.count(f"`{label}` {each.mean():+.1f} points {interval}, {len(each)} seeds") == 1
        beyond = half < abs(each.mean())
        starts[(better if each.mean() > 0 else worse) if beyond else equal].append(label)
    for start, labels in starts.items():
        lines = [line for line in said.splitlines() if line.startswith(f"- {start}")]
        assert len(lines) == bool(labels)
        assert all(f"`{label}` " in lines[0] for label in labels)
    regularisers = [label for label in starts[better] if not is_control(label)]
    assert ("o regulariser was shown to be better than `none`" in said) == (not regularisers)


def publish(folder: Path, gains: dict[str, float], seeds: int = 5, missing: tuple[str, ...] = ()) -> None:
    """A study with these differences to `none`, in points."""
    rows: list[tuple[Any, ...]] = [(label, seed, "runs", "missing") for label in missing for seed in range(5)]
    for order, (label, gain) in enumerate(gains.items()):
        scores = [0.7 + gain / 100 + 0.0005 * (seed * (order + 1) % 5) for seed in range(seeds)]
        rows += [(label, seed, "runs", "finished", score, score) for seed, score in enumerate(scores)]
        rows.append((label, 1000, "tuning", "finished", "", 0.6 + gain / 100))
    # The first method of a table is its baseline.
    write_results(folder, sorted(rows, key=lambda row: row[0] != "none"))
    (folder / "recipe.yaml").write_text((FOLDER / "recipe.yaml").read_text(encoding="utf-8"), encoding="utf-8")


@pytest.fixture
def made(page: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The page over results of a folder of the test."""
    monkeypatch.setattr(page.studies, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "FOLDER", tmp_path / "cifar100")
    page.made = tmp_path / "cifar100"
    return page


def test_a_study_that_is_not_complete_says_so_first(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0, DROPOUT: -3.0}, missing=("hard(p=0.2,k=10)",))
    first, second, *_ = made.bullets().splitlines()
    assert first.startswith(
        "- **The study is not complete**: 15 of 20 runs have ended, of 3 of 4 methods. It judges no"
    )
    assert second == "- **So far, no regulariser was shown to be better than `none`.**"
    assert "`hard(p=0.2,k=10)`" not in made.bullets()  # it has no run to tell of
    assert made.beside().endswith("\n- CIFAR-100 [is not complete](cifar-100.md): it judges no claim yet.")
    assert made.state() == "15 of 20 runs are done" and made.weak_rivals() == ""
    start = "On CIFAR-100 with short training (15 of 20 runs are done), no regulariser was shown to be better than no method"
    assert made.in_short() == f"{start} so far."
    assert made.in_short(with_worse=True).startswith(f"{start} so far; `{DROPOUT}` (-3.")
    assert made.in_short(with_worse=True).endswith("]) is worse so far.")
    publish(made.made, {"none": 0.0, OURS: 0.0})
    first, second, *_ = made.bullets().splitlines()
    assert first == "- The study is complete: all runs of 2 methods have ended."
    assert second == "- **No regulariser was shown to be better than `none`.**"
    assert "not complete" not in made.beside() and "so far" not in made.in_short()
    assert made.state() == "all runs are done"


def test_a_failed_run_is_told_and_does_not_keep_a_study_from_being_complete(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0})
    file = made.made / "results.csv"
    file.write_text(file.read_text().replace(f"{OURS},4,runs,finished", f"{OURS},4,runs,diverged"))
    assert made.bullets().startswith("- The study is complete: all runs of 2 methods have ended. Runs that failed: 1.")


def test_what_is_better_comes_first_and_what_is_worse_last(made: Any) -> None:
    publish(made.made, {"none": 0.0, DROPOUT: -3.0, OURS: 0.0, "hard(p=0.2,k=10)": 4.0, R_DROP: -2.0, CONTROL: -1.0})
    said = made.bullets()
    _, better, equal, worse, *_ = said.splitlines()
    assert better.startswith("- Better than `none`") and "`hard(p=0.2,k=10)` +4." in better
    assert equal.startswith("- Not told apart") and f"`{OURS}`" in equal
    assert worse.startswith("- **Worse than `none`**") and f"`{DROPOUT}` -3." in worse and f"`{R_DROP}` -2." in worse
    assert "o regulariser was shown" not in said
    assert "`hard(p=0.2,k=10)` (+4." in made.in_short() and "is better than no method." in made.in_short()
    assert CONTROL not in made.in_short(with_worse=True) and "are worse." in made.in_short(with_worse=True)
    care = made.weak_rivals()
    assert f"`{DROPOUT}` -3." in care and f"`{R_DROP}` -2." in care and OURS not in care and " P2 to P5 on " in care
    publish(made.made, {"none": 0.0, DROPOUT: 0.0, R_DROP: -2.0})  # only the claims that are about it
    assert " P4 and P5 on CIFAR-100: to no method, `r-drop" in made.weak_rivals()
    publish(made.made, {"none": 0.0, DROPOUT: 0.0, R_DROP: 2.0})
    assert made.weak_rivals() == ""


def test_more_epochs_and_a_second_pass_alone_are_no_regularisers(made: Any) -> None:
    publish(made.made, {"none": 0.0, LONGER: 4.0, CONTROL: 1.0, OURS: 0.0})
    _, second, better, _, to_longer, *_ = made.bullets().splitlines()
    assert second == "- **No regulariser was shown to be better than `none`.**"
    assert f"`{LONGER}` +4." in better and f"`{CONTROL}` +1." in better
    assert to_longer.startswith(f"- To `{LONGER}`, which is `none` with twice the epochs: `{OURS}` -4.")
    assert to_longer.endswith("5 seeds.") and "no regulariser" in made.in_short()


def test_two_seeds_make_no_sentence(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: -5.0, LONGER: 1.0}, seeds=2)
    said = made.bullets().splitlines()
    assert said[2] == f"- Fewer than three seeds, so nothing is said: `{OURS}`, `{LONGER}`."
    assert not any(line.startswith("- To `longer") for line in said)


def test_the_trials_show_the_best_of_each_method(page: Any) -> None:
    trials = {label: max(own.values()) for label, own in scores("cifar100", "validation_accuracy", "tuning").items()}
    said = page.bullets().splitlines()[-1]
    best: dict[str, float] = {}
    for label, score in trials.items():
        kind = "r-drop(weight=0.0)" if label.startswith("r-drop(weight=0.0,") else label
        kind = kind if kind.endswith("(weight=0.0)") else "+".join(part.split("(")[0] for part in label.split("+"))
        best[kind] = max(best.get(kind, 0), 100 * score)
    assert len(best) == 8
    places = [said.index(f"`{kind}` {best[kind]:.1f}") for kind in sorted(best, key=best.__getitem__, reverse=True)]
    assert places == sorted(places)


def test_longer_training_is_that_of_the_checks(page: Any) -> None:
    said = page.bullets()
    none = scores("cifar100", "test_accuracy")["none"]
    assert f"`none` has {100 * np.mean(list(none.values())):.1f} % after them" in said
    protocol = (RESULTS.parent / "protocol.md").read_text(encoding="utf-8")
    table = protocol.partition("<!-- begin: check of CIFAR-100 -->")[2].partition("<!-- end")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    best = {epochs: max((line[4], line[5]) for line in lines if line[3] == epochs)[1] for epochs in ("200", "300")}
    assert f"one run of 200 epochs had {best['200']} %" in said and f"weight decay) {best['300']} %, on" in said


def test_a_method_that_failed_is_named(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0, DROPOUT: 0.0})
    file = made.made / "results.csv"
    text = re.sub(rf"({re.escape(DROPOUT)},\d,runs),finished.*", r"\1,diverged,,,,", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    assert "all runs of 3 methods have ended. Runs that failed: 5." in made.bullets()
    assert f"- Fewer than three seeds, so nothing is said: `{DROPOUT}`." in made.bullets().splitlines()


def test_the_corrections_of_a_study_in_which_all_have_run_stay(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0}, seeds=3)
    file = made.made / "results.csv"
    file.write_text(file.read_text(encoding="utf-8") + f"{OURS},4,runs,missing,,,,\n", encoding="utf-8")
    assert "7 runs have ended, of 2 of 2 methods. It judges no claim yet." in made.bullets()
    assert "stricter" not in made.bullets()


def test_a_gain_over_no_method_is_told_with_that_of_twice_the_epochs(made: Any) -> None:
    publish(made.made, {"none": 0.0, LONGER: 4.0, OURS: 3.0, R_DROP: 2.0, DROPOUT: 1.0})
    short = made.in_short()
    assert short.count(" and ") == 1 and short.count("points [") == 4  # a list: `a`, `b` and `c`
    assert " are better than no method. Twice the epochs gain +4." in short
    assert made.over_longer() is None
    publish(made.made, {"none": 0.0, LONGER: 2.0, OURS: 4.0})
    assert made.over_longer().startswith("+2.") or made.over_longer().startswith("+1.9")
    publish(made.made, {"none": 0.0, LONGER: 2.0, OURS: 4.0}, missing=(R_DROP,))
    assert made.over_longer() is None


def test_times_are_told_when_they_are_measured(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0})
    assert made.times().startswith("The table has no GPU time yet")
    file = made.made / "results.csv"
    file.write_text(file.read_text(encoding="utf-8") + f"{OURS},5,runs,finished,0.7,0.7,0.1,30\n", encoding="utf-8")
    assert made.times().startswith("GPU seconds of a run are its steps") and "cifar100-gpu-seconds.svg" in made.times()


def test_that_the_preset_is_worse_is_told_everywhere(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: -3.0, DROPOUT: -3.0})
    short, start = made.in_short(), "no regulariser was shown to be better than no method; "
    assert f"{start}`{OURS}` (-3." in short and short.endswith("]) is worse.") and DROPOUT not in short
    assert made.in_short(with_worse=True).endswith("]) are worse.")
