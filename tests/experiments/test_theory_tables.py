"""The tables of docs/theory.md, from made-up results whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

HARD, BLUR = "hard(p=0.1,k=5)", "blur(sigma_max=0.5)"


@pytest.fixture
def tables(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("theory_tables")


def publish(tables: Any, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    monkeypatch.setattr(tables, "rows", lambda table: texts)


NAMES = (
    "stochastic",
    "deterministic",
    "deterministic, through disagreement",
    "majority vote, through views",
    "softmax, through the consistency KL",
    "posterior",
    "posterior mean, through disagreement",
    "posterior, held-out",
)


def certificates() -> list[dict[str, Any]]:
    """Of three methods, in another order than that of the demo."""
    found = []
    for method, base, kl in ((HARD, 0.02, 1.0), ("none", 0.01, 0.8), ("dropconnect(p=0.1)", 0.04, 7.0)):
        for place, name in enumerate(NAMES):
            row = {"method": method, "test_error": base, "kl": kl, "mean_error": base / 2, "prior_value": base + 0.041}
            found.append(row | {"name": name, "value": base + place / 100 + 1e-5, "estimate": base, "n": 539})
    return found


def test_bounds_are_rounded_up_and_errors_to_the_nearest(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tables, monkeypatch, certificates())
    none, connect, hard = tables.certificates().splitlines()[2:]
    assert none.startswith("| `none` | 1.0 | 2.1 | 1.1 (1.0) | 3.1 | 4.1 | 5.1 | 6.1 (1.0) | 7.1 (0.5) |")
    assert connect.startswith("| `dropconnect(p=0.1)` | 4.0 |") and hard.startswith(f"| `{HARD}` | 2.0 |")
    assert "by 2.1 to 5.1 % for the plain model, by 1.1 to 4.1 % for" in tables.bounds_in_a_sentence()
    assert "moved 0.8 to 1.0 nats from its prior (7.0 for `dropconnect(p=0.1)`)" in tables.posteriors()
    assert "by at most 0.9 points (0.9 points worse for" in tables.posteriors()


def test_ratios_of_variances_have_geometric_means(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {
            "method": method,
            "seed": seed,
            "checkpoint": checkpoint,
            "base": 2.0,
            "perturbed": 2.0 * factor * spread,
            "difference": 4.0,
            "covariance": -1.0 if checkpoint == "before" else 2.0,
            "from_draws": factor,
        }
        for method, factor in ((HARD, 8.0), (BLUR, 1.5))
        for checkpoint in tables.CHECKPOINTS
        for seed, spread in enumerate((0.5, 1.0, 2.0))
    ]
    publish(tables, monkeypatch, rows)
    half = 4.3027 * math.log(2) / 3**0.5
    low, high = 8.0 * math.exp(-half), 8.0 * math.exp(half)
    assert tables.ratio_in_words(HARD, "last") == f"8.0 ({low:.1f} to {high:.1f})"
    said = tables.below_one()
    assert said.startswith("3 of 18 measurements were below 1 (the lowest by 25.0 %).")
    assert "-0.25 to -0.25 for masking before training, and 0.50 to 0.50 after it" in said
    assert "0.25 to 1.00 of the variance under masking" in said


def test_the_curve_of_training_is_a_mean_over_seeds(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"method": method, "seed": seed, "epoch": epoch, "variance": epoch + seed, "test_accuracy": 0.97 + 0.01 * seed}
        for method in ("none", HARD, BLUR)
        for seed in (0, 1)
        for epoch in (10, 2)
    ]
    publish(tables, monkeypatch, rows)
    head, _, first, *_ = tables.probes().splitlines()
    assert head == "| epoch | 2 | 10 | test accuracy |" and first == "| `none` | 2.50 | 10.50 | 97.5 % |"


def test_changes_of_the_entropy_have_intervals_over_seeds(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"spec": HARD, "seed": seed, "before": 2.0, "after": 2.1 + 0.01 * seed, "heads": 16, "falling": seed}
        for seed in range(3)
    ]
    publish(tables, monkeypatch, rows)
    half = 4.3027 * 0.01 / 3**0.5
    assert tables.entropy().splitlines()[2] == f"| `{HARD}` | 2.000 | 2.110 | +0.110 ± {half:.3f} | 3 of 48 |"
