"""The sentences about CIFAR-100 say what its results say, computed here in another way, however far the study is."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from .published import RESULTS, scores

OURS, LONGER, R_DROP = "blur(sigma_max=2.0)+consistency(weight=3.0)", "longer(times=2)", "r-drop(weight=0.3,p=0.1)"
FOLDER = RESULTS / "cifar100"


@pytest.fixture
def page(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("cifar_100")


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
    marks: dict[str, list[str]] = {"Better than": [], "Not told apart": [], "**Worse than": []}
    for before, label in enumerate(smallest_first):
        each, step = apart[label], len(apart) - before
        half = stats.t.ppf(1 - 0.025 / step, len(each) - 1) * each.std(ddof=1) / len(each) ** 0.5
        if len(each) < 3:
            assert f"`{label}` ({len(each)})" in said
            continue
        words = f"`{label}` {each.mean():+.1f} points [{each.mean() - half:+.1f}, {each.mean() + half:+.1f}]"
        assert said.count(words) == 1
        beyond = half < abs(each.mean())
        marks["Not told apart" if not beyond else "Better than" if each.mean() > 0 else "**Worse than"].append(label)
    for start, labels in marks.items():
        lines = [
            line for line in said.splitlines() if line.startswith(f"- {start} `none`") or f"- {start} from" in line
        ]
        assert len(lines) == bool(labels)
        assert all(f"`{label}` " in lines[0] for label in labels)
    assert ("o method was shown to be better than `none`" in said) is not marks["Better than"]


def publish(folder: Path, gains: dict[str, float], seeds: int = 5, asked: int | None = None) -> None:
    """A study with these differences to `none`, in points. `asked`: methods of its recipe."""
    rows = [["method", "seed", "part", "status", "test_accuracy", "validation_accuracy"]]
    for order, (label, gain) in enumerate(gains.items()):
        for seed in range(seeds):
            score = 0.7 + gain / 100 + 0.0005 * (seed * (order + 1) % 5)
            rows.append([label, seed, "runs", "finished", score, score])
        rows.append([label, 1000, "tuning", "finished", "", 0.6 + gain / 100])
    folder.mkdir(exist_ok=True)
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    recipe = yaml.safe_load((FOLDER / "recipe.yaml").read_text(encoding="utf-8"))
    recipe["recipe"]["methods"] = list(gains)[: asked or len(gains)] + ["dropkey"] * ((asked or 0) - len(gains))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


@pytest.fixture
def made(page: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The page over results of a folder of the test."""
    monkeypatch.setattr(page.studies, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "FOLDER", tmp_path / "cifar100")
    page.made = tmp_path / "cifar100"
    return page


def test_a_study_that_is_not_complete_says_so_first(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: 0.0}, asked=3)
    first, second, *_ = made.bullets().splitlines()
    assert first.startswith("- **The study is not complete**: 10 of 15 runs are done, of 2 of 3 methods. It judges no")
    assert second == "- **So far, no method was shown to be better than `none`.**"
    assert "is not complete](cifar-100.md)" in made.beside()
    publish(made.made, {"none": 0.0, OURS: 0.0})
    first, second, *_ = made.bullets().splitlines()
    assert first == "- The study is complete: all 10 runs of 2 methods are done."
    assert second == "- **No method was shown to be better than `none`.**"
    assert "not complete" not in made.beside()


def test_what_is_better_comes_first_and_what_is_worse_last(made: Any) -> None:
    publish(made.made, {"none": 0.0, "dropout(p=0.1)": -3.0, OURS: 0.0, LONGER: 4.0, R_DROP: -2.0})
    said = made.bullets()
    _, better, equal, worse, *_ = said.splitlines()
    assert better.startswith("- Better than `none`") and f"`{LONGER}` +4." in better
    assert equal.startswith("- Not told apart") and f"`{OURS}`" in equal
    assert (
        worse.startswith("- **Worse than `none`**") and "`dropout(p=0.1)` -3." in worse and f"`{R_DROP}` -2." in worse
    )
    assert "No method was shown" not in said
    (care,) = (line for line in made.beside().splitlines() if "with care" in line)
    assert "`dropout(p=0.1)` -3." in care and f"`{R_DROP}` -2." in care and OURS not in care
    publish(made.made, {"none": 0.0, "dropout(p=0.1)": 0.0, R_DROP: 2.0})
    assert "with care" not in made.beside()


def test_two_seeds_make_no_sentence(made: Any) -> None:
    publish(made.made, {"none": 0.0, OURS: -5.0}, seeds=2)
    assert made.bullets().splitlines()[2] == f"- With too few seeds for a sentence: `{OURS}` (2)."


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
