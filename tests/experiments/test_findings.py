"""The sentences about study 1 say what its results say, computed here in another way."""

from __future__ import annotations

import csv
import importlib
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


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", [str(EVIDENCE), *sys.path])
    yield importlib.import_module("findings")
    for name in ("findings", "claims", "plan", "tables"):
        sys.modules.pop(name, None)


def column(method: str, name: str) -> np.ndarray:
    with (EVIDENCE / "results" / "cifar10-20pct-confirm" / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == method]
    return np.array([float(row[name]) for row in sorted(rows, key=lambda row: int(row["seed"]))])


def test_differences_are_paired_and_corrected_over_all_eleven(findings: Any) -> None:
    apart = 100 * (column(OURS, "test_accuracy") - column(R_DROP, "test_accuracy"))
    assert len(apart) == 10
    # It is not the smallest p of the eleven comparisons with R-Drop: Holm's step is between 1 and 11.
    widths = [stats.t.ppf(1 - 0.025 / step, 9) * apart.std(ddof=1) / 10**0.5 for step in range(1, 12)]
    shown = {
        f"{apart.mean():+.1f} points [{apart.mean() - w:+.1f}, {apart.mean() + w:+.1f}] over tuned" for w in widths
    }
    assert any(text in findings.sentences()["best"] for text in shown)
    uncorrected = f"[{apart.mean() - widths[0]:+.2f}, {apart.mean() + widths[0]:+.2f}]"
    assert uncorrected == "[+1.40, +2.08]" and "[+1.4, +2.1]" not in findings.sentences()["best"]


@pytest.mark.parametrize(("other", "whose"), [(R_DROP, "its"), (LONGER, "their")])
def test_times_are_those_of_whole_runs(findings: Any, other: str, whose: str) -> None:
    ratio = column(OURS, "gpu_seconds").mean() / column(other, "gpu_seconds").mean()
    assert f"at {ratio:.2f} of {whose} GPU time" in findings.sentences()["best"]


def test_what_speaks_against_the_methods_comes_first_in_the_readme(findings: Any) -> None:
    first, second = findings.short().splitlines()
    assert (
        first.startswith("- **More epochs gain more than any method.**") and "show no gain" in first and OURS in second
    )
