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


def rows() -> list[dict[str, str]]:
    with (EVIDENCE / "results" / "cifar10-20pct-confirm" / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(method: str, name: str) -> np.ndarray:
    own = [row for row in rows() if row["method"] == method]
    return np.array([float(row[name]) for row in sorted(own, key=lambda row: int(row["seed"]))])


def test_differences_are_paired_and_corrected_over_all_eleven(findings: Any) -> None:
    others = {row["method"] for row in rows()} - {R_DROP}
    apart = {name: 100 * (column(name, "test_accuracy") - column(R_DROP, "test_accuracy")) for name in others}
    smallest_first = sorted(others, key=lambda name: stats.ttest_1samp(apart[name], 0).pvalue)
    step, ours = 11 - smallest_first.index(OURS), apart[OURS]
    assert len(others) == 11 and step > 1 and len(ours) == 10
    half = stats.t.ppf(1 - 0.025 / step, 9) * ours.std(ddof=1) / 10**0.5
    shown = f"{ours.mean():+.1f} points [{ours.mean() - half:+.1f}, {ours.mean() + half:+.1f}] over tuned R-Drop"
    assert shown in findings.sentences()["best"]


def test_a_method_that_helps_alone_needs_another_sentence(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.claims, "is_of_the_paper", lambda name: findings.claims.is_called("longer"))
    with pytest.raises(SystemExit, match="write its sentence anew"):
        findings.sentences()


@pytest.mark.parametrize(("other", "whose"), [(R_DROP, "its"), (LONGER, "their")])
def test_times_are_those_of_whole_runs(findings: Any, other: str, whose: str) -> None:
    ratio = column(OURS, "gpu_seconds").mean() / column(other, "gpu_seconds").mean()
    assert f"at {ratio:.2f} of {whose} GPU time" in findings.sentences()["best"]


def test_what_speaks_against_the_methods_comes_first_in_the_readme(findings: Any) -> None:
    first, second = findings.short().splitlines()
    assert (
        first.startswith("- **More epochs gain more than any method.**") and "show no gain" in first and OURS in second
    )
