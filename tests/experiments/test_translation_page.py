"""The sentences about Multi30k say what its results say, computed here in another way."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
BASE, SEARCHED = "none(lr=1.0,decay=0.2)", "blur(sigma_max=2.0)+consistency(weight=3.0)"


@pytest.fixture
def translation(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("translation")


def rows(part: str) -> list[dict[str, str]]:
    with (EVIDENCE / "results" / "multi30k-en-de" / "results.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["part"] == part]


def apart(method: str) -> np.ndarray:
    """The differences to `none`, with the seeds that both have."""
    one, other = (
        {row["seed"]: float(row["test_bleu"]) for row in rows("runs") if row["method"] == label and row["test_bleu"]}
        for label in (method, BASE)
    )
    return np.array([one[seed] - other[seed] for seed in one if seed in other])


def test_differences_are_paired_and_corrected(translation: Any) -> None:
    said = translation.bullets()
    labels = {row["method"] for row in rows("runs")} - {BASE}
    smallest_first = sorted(labels, key=lambda label: stats.ttest_1samp(apart(label), 0).pvalue)
    for label in (SEARCHED, "dropout(p=0.1)", "r-drop(weight=3.0,p=0.1)"):
        found, step = apart(label), len(labels) - smallest_first.index(label)
        half = stats.t.ppf(1 - 0.025 / step, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5
        interval = f"[{found.mean() - half:+.1f}, {found.mean() + half:+.1f}]"
        assert f"{found.mean():+.1f} BLEU {interval} ({len(found)} seeds)" in said


def test_what_is_missing_comes_first(translation: Any) -> None:
    done = sum(row["status"] == "finished" for row in rows("runs"))
    first, second, *_ = translation.bullets().splitlines()
    assert first.startswith(f"- **The study is not complete**: {done} of {len(rows('runs'))} runs")
    assert SEARCHED in second and "does harm" in second


def test_other_results_need_other_sentences(translation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation.claims, "SEARCHED", "r-drop(weight=3.0,p=0.1)")  # better than none
    with pytest.raises(SystemExit, match="write the sentences anew"):
        translation.bullets()
