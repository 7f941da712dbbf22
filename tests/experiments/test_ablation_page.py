"""The page of the ablations: its intervals are those of least squares, and verdicts follow them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats


@pytest.fixture
def page(docs_module: Callable[[str], Any]) -> Any:
    """The module."""
    return docs_module("ablations")


def scores(methods: int, seeds: int) -> dict[str, dict[int, float]]:
    """Random scores of `none` and others, with an effect of the seed."""
    numbers = np.random.default_rng(0).normal(60, 1, (methods, seeds)) + 5 * np.arange(seeds)
    names = ["none", *(f"m{number}" for number in range(1, methods))]
    return {name: dict(enumerate(map(float, row))) for name, row in zip(names, numbers, strict=True)}


@pytest.mark.parametrize("chosen", [[1], [1, 4, 5]])
@pytest.mark.parametrize("seeds", [2, 4])
def test_an_interval_is_that_of_least_squares(page: Any, chosen: list[int], seeds: int) -> None:
    found = scores(9, seeds)
    cells = [(m, s, x) for m, row in enumerate(found.values()) for s, x in row.items()]
    design = np.zeros((len(cells), 9 + seeds - 1))
    for line, (m, s, _) in enumerate(cells):
        design[line, m] = 1
        if s:
            design[line, 8 + s] = 1
    y = np.array([x for *_, x in cells])
    fitted, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    free = len(cells) - design.shape[1]
    contrast = np.zeros(design.shape[1])
    contrast[chosen], contrast[0] = 1 / len(chosen), -1
    error = np.sqrt(residual[0] / free * contrast @ np.linalg.inv(design.T @ design) @ contrast)
    change = page.Ablations(found, {}, len(cells)).change([f"m{m}" for m in chosen])
    assert change.mean == pytest.approx(contrast @ fitted)
    assert change.half == pytest.approx(stats.t.ppf(0.975, free) * error)
    assert change.runs == len(chosen) * seeds


def test_a_point_with_one_seed_is_compared_within_it_and_known_less_well(page: Any) -> None:
    found = scores(9, 2)
    both = page.Ablations(found, {}, 18).change(["m1"])
    del found["m1"][1], found["m2"][0]
    known = page.Ablations(found, {}, 18)
    one = known.change(["m1"])
    assert one.mean == pytest.approx(found["m1"][0] - found["none"][0]) and one.runs == 1
    assert one.half > 1.2 * both.half
    assert known.change(["m1", "m2"]) is None and known.change(["unknown"]) is None


def test_a_loss_needs_its_whole_interval_beyond_two_points(page: Any) -> None:
    judged = {mean: page.loses(page.Change(mean, 1.0, 2)) for mean in (-4.0, -2.5, -0.5, 3.0)}
    assert list(judged.values()) == ["reproduced", "not resolved", "not reproduced", "not reproduced"]


def test_every_point_of_the_recipe_is_on_the_page(page: Any) -> None:
    found = page.read()
    points = [point for name in found.grids for point in found.points(name)]
    assert set(points) <= {*found.scores} and found.planned == 2 * (1 + len(set(points)))
    text = page.grid_tables()
    assert sum(line.count("[") for line in text.splitlines()) == len(points)
    assert found.points("hard", p=[0.7], k=[20]) == ["hard(p=0.7,k=20)"]


def test_verdicts_of_the_paper(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = page.read()
    better = {
        method: {seed: score + 9 * ("p=0.7" in method) for seed, score in runs.items()}
        for method, runs in found.scores.items()
    }
    monkeypatch.setattr(page, "read", lambda: page.Ablations(better, found.grids, found.planned))
    verdict, words = page.high_rates()
    assert verdict == "reproduced in part" and "p = 0.7: +4." in words and "p = 0.9: -11." in words


def test_a_difference_between_two_points_has_the_error_of_both(page: Any) -> None:
    known = page.Ablations(scores(9, 3), {}, 27)
    one, other, between = known.change(["m1"]), known.change(["m2"]), known.change(["m1"], "m2")
    assert between.mean == pytest.approx(one.mean - other.mean) and between.half == pytest.approx(one.half)
    assert known.change(["m1"], "m9") is None


def test_the_search_takes_the_best_mean_and_says_what_cannot_be_told_from_it(page: Any) -> None:
    known = page.Ablations({"none": {0: 1.0, 1: 2.0}, "a": {0: 9.0, 1: 4.0}, "b": {0: 6.0, 1: 6.5}}, {}, 7)
    found = importlib.import_module("ranking").Ranking(known, "score", "units")
    assert found.ranked() == ["a", "b", "none"] and found.winner() == "a"
    assert found.winner(lambda label: label != "a") == "b"
    assert found.change("a", "b").includes_zero
    assert found.state().startswith("6 of 7 runs. A run deviates by ")
    headings, _, *rows = found.table().splitlines()
    assert "| validation score | to `none`, units | to the first, units |" in headings
    assert rows[0].startswith("| `a` | 2 | 6.50 | +5.0 [") and rows[0].endswith("|  |")
    assert rows[1].startswith("| `b` | 2 | 6.25 | +4.8 [") and "| -0.2 [" in rows[1]
    assert "| `none` | 2 | 1.50 |  | -5.0 [" in rows[2]
    with pytest.raises(SystemExit, match="expected runs of a and c"):
        found.change("a", "c")
    assert not page.Change(1.0, 0.9, 3).includes_zero and not page.Change(-1.0, 0.9, 3).includes_zero


def test_every_part_of_the_published_search_is_compared_with_a_point_of_it(page: Any) -> None:
    search = importlib.import_module("search")
    known = page.read(search.FOLDER).scores
    assert {text for method, (other, _) in search.CHANGED.items() for text in (method, other)} <= set(known)
