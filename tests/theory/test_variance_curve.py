"""The picture of `attentiondrop variance`: which lines it has, with which numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from attentiondrop.theory.curve import Curve, draw


def checkpoint(base: float, perturbed: float, ends: tuple[float, float]) -> Any:
    total = SimpleNamespace(base=base, perturbed=perturbed, ratio=perturbed / base, intervals={"ratio": ends})
    return SimpleNamespace(total=total)


def test_variances_above_and_their_ratios_with_intervals_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (drawn.append(self), save(self, path))[1])
    points = [(0, checkpoint(2.0, 3.0, (1.25, 1.75))), (5, checkpoint(1.0, 4.0, (3.5, 4.5)))]
    draw(tmp_path / "curve.svg", [Curve("hard", [(1, 2.5), (2, 2.25)], points), Curve("none", [(1, 2.0)], [])])
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").startswith("<?xml")
    above, below = drawn[0].axes
    assert above.get_yscale() == below.get_yscale() == "log"
    assert {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in above.lines} == {
        "hard: while training": ([1, 2], [2.5, 2.25]),
        "hard: without perturbation": ([0, 5], [2.0, 1.0]),
        "hard: with perturbation": ([0, 5], [3.0, 4.0]),
        "none: while training": ([1], [2.0]),
    }
    hard, none = above.lines[0].get_color(), above.lines[3].get_color()
    assert hard != none and {line.get_color() for line in above.lines[:3]} == {hard}
    shown = [(list(line.get_xdata()), list(line.get_ydata())) for line in below.lines if line.get_color() == hard]
    assert shown == [([0, 0], [1.25, 1.75]), ([0], [1.5]), ([5, 5], [3.5, 4.5]), ([5], [4.0])]
    assert len(drawn[0].legends[0].get_texts()) == 4
