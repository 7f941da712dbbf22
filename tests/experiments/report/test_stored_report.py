"""The texts of the study under docs/results agree with its numbers."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from attentiondrop.experiments.analysis.intervals import corrected, paired_difference

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "cifar10-20pct"


@pytest.fixture(scope="module")
def runs() -> list[dict[str, str]]:
    with (FOLDER / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def accuracy(runs: list[dict[str, str]], start: str) -> dict[int, float]:
    return {
        int(run["seed"]): float(run["test_accuracy"])
        for run in runs
        if run["part"] == "runs" and run["method"].startswith(start)
    }


def test_no_difference_remains_after_correction_and_nothing_has_a_star(runs: list[dict[str, str]]) -> None:
    methods = list(dict.fromkeys(run["method"] for run in runs if run["part"] == "runs"))
    baseline = accuracy(runs, methods[0])
    found = corrected([paired_difference(accuracy(runs, method), baseline) for method in methods[1:]])
    assert len(found) == 7 and sum(each.interval.excludes_zero for each in found) == 2
    assert not any(each.marked for each in found)
    for name in ("README.md", "report.md"):
        assert not re.search(r"\] ?(\\\*|\*\*)", (FOLDER / name).read_text(encoding="utf-8")), name
    page = (FOLDER / "report.html").read_text(encoding="utf-8")
    assert 'class="mark"' not in page and "interval marked" not in page
    assert "No difference remains after Holm&#x27;s correction for 7 comparisons" in page
    assert "after Holm's correction for that none remains" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["hard(p=0.2", "blur(sigma_max=1.0)+"])
def test_attention_against_activations_is_argued_from_paired_differences(
    runs: list[dict[str, str]], method: str
) -> None:
    found = paired_difference(accuracy(runs, method), accuracy(runs, "r-drop")).times(100).text(2)
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    assert found.replace(" [", " points [") in text or found in text, found
    assert "overlap" not in text


def test_trials_have_no_test_scores(runs: list[dict[str, str]]) -> None:
    assert {(run["part"], bool(run["test_accuracy"])) for run in runs} == {("runs", True), ("tuning", False)}
