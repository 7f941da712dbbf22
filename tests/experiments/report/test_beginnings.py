"""A curve that falls far in its first epochs leaves its other epochs readable."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.analysis.summary import Summary
from attentiondrop.experiments.report import training
from attentiondrop.experiments.report.beginnings import hides, later, within
from attentiondrop.experiments.report.chart import Chart, Point
from attentiondrop.experiments.report.palette import looks
from attentiondrop.experiments.report.scales import Scale
from attentiondrop.experiments.report.training import Panel, _panel
from attentiondrop.experiments.studies.plan import read_study

from .pages import Maker

NOTE = "The axis leaves out the first epochs."


@pytest.fixture
def summary(comparison: Maker, tmp_path: Path) -> Summary:
    """Two methods with twelve epochs."""
    return summarise(read_study(comparison(tmp_path, {"none": [0.9, 0.91], "blur": [0.9, 0.92]})))


def drawn(summary: Summary, height: Callable[[int], float | None], **changes: Any) -> str:
    panel = Panel("Loss", "nats", lambda epoch: height(epoch.epoch))
    found = _panel(dataclasses.replace(panel, **changes), summary.rows, looks(["none", "blur"]))
    assert found is not None
    return str(found)


def ticks(markup: str) -> list[float]:
    """The numbers at the vertical axis."""
    return [float(found) for found in re.findall(r'class="tick" text-anchor="end">([\d.]+)<', markup)]


def falling(epoch: int) -> float:
    return 9.0 if epoch == 1 else 4.0 if epoch == 2 else 2.0 - 0.05 * epoch


def test_the_axis_is_that_of_the_later_epochs(summary: Summary) -> None:
    found = drawn(summary, falling)
    assert NOTE in found and 1.3 < min(ticks(found)) < max(ticks(found)) < 2.0
    # A line begins at the edge, between the epochs 2 and 3, and has no marker there.
    begins = re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)[^"]*" class="line"', found)
    assert begins is not None
    chart = Chart(Scale(1, 12, whole=True), Scale(0, 1), "", "")
    assert chart.left(2) < float(begins[1]) < chart.left(3) == pytest.approx(float(begins[3]), abs=0.01)
    assert float(begins[2]) == chart.margin[0] < float(begins[4])
    assert f"translate({begins[1]} " not in found and f"translate({begins[3]} " not in found
    (band, *_) = re.findall(r'd="M([\d.]+) [^"]*" class="band"', found)
    assert band == begins[3]
    assert "Loss by epoch, in nats: none from 9 at epoch 1" in found  # for people who cannot see it


def test_a_curve_of_even_steps_is_shown_whole(summary: Summary) -> None:
    found = drawn(summary, lambda epoch: 9.0 - 0.5 * epoch)
    assert NOTE not in found and max(ticks(found)) >= 8


def test_a_few_points_are_shown_whole(summary: Summary) -> None:
    found = drawn(summary, lambda epoch: falling(epoch) if epoch in (1, 6, 12) else None, sparse=True)
    assert NOTE not in found and max(ticks(found)) >= 8


def test_a_logarithmic_axis_needs_no_cut(summary: Summary) -> None:
    found = drawn(summary, lambda epoch: 10.0**-epoch, log=True)
    assert NOTE not in found and "logarithmic" in found


def test_what_is_far_off_on_a_logarithmic_axis_is_so_there(
    comparison: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrow and the number stand for what is far off."""
    names = [f"dropkey(p=0.{number})" for number in range(1, 6)]
    rows = summarise(read_study(comparison(tmp_path, {name: [0.9] for name in names}))).rows

    def drawn_at(heights: list[float], log: bool = True) -> str:
        found = dict(zip(names, heights, strict=True))
        curves = {name: [Point(epoch, height) for epoch in (1, 2, 3)] for name, height in found.items()}
        monkeypatch.setattr(training, "_points", lambda panel, row: curves[row.label])
        return str(_panel(Panel("Loss", "nats", lambda epoch: None, log=log), rows, looks(names)))

    near = [0.2, 0.4, 3.0, 5.0, 22.0]
    assert 'class="note">22' not in drawn_at(near)
    assert 'class="note">22' in drawn_at(near, log=False)
    assert 'class="note">1e+05' in drawn_at([1.0, 1.5, 2.0, 3.0, 1e5])
    # Zero is on no such axis.
    assert 'class="note">22' in drawn_at([0.0, 0.1, 0.2, 0.4, 22.0])


@pytest.mark.parametrize(("sign", "best", "away"), [(1, min, 12), (-1, max, -4)])
def test_the_target_stays_on_the_axis_and_its_label_out_of_the_way(
    summary: Summary, sign: int, best: Any, away: int
) -> None:
    found = drawn(summary, lambda epoch: sign * falling(epoch), best=best, target=(sign * 1.2, "target"))
    assert NOTE in found
    (line,) = re.findall(r'd="M\S+ ([\d.]+)H\S+" class="rule"', found)
    (label,) = re.findall(r'y="([\d.]+)" class="note">target<', found)
    chart = Chart(Scale(1, 12, whole=True), Scale(0, 1), "", "")
    assert chart.top(1) < float(line) < chart.top(0)
    assert float(label) - float(line) == pytest.approx(away, abs=0.01)


def test_what_is_later() -> None:
    assert [point.x for point in later([Point(x, 0.0) for x in range(1, 11)])] == list(range(3, 11))
    assert len(later([Point(x, 0.0) for x in range(1, 10)])) == 9


@pytest.mark.parametrize(("every", "rest", "hidden"), [([3.1, 0.0], [1.0, 0.0], True), ([2.9, 0.0], [1.0, 0.0], False)])
def test_a_third_of_the_axis_is_enough(every: list[float], rest: list[float], hidden: bool) -> None:
    assert hides(every, rest) is hidden


def test_equal_numbers_hide_nothing() -> None:
    assert not hides([5.0, 1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("heights", "found"),
    [
        ([9.0, 5.0, 2.0], ([(2 + 2 / 3, 3.0), (3, 2.0)], True)),
        ([-3.0, 1.0, 2.0], ([(1.75, 0.0), (2, 1.0), (3, 2.0)], True)),
        ([1.0, 5.0, 2.0], ([(1, 1.0), (2, 5.0), (3, 2.0)], False)),  # only beginnings are cut
        ([9.0, 8.0, 7.0], ([], True)),
    ],
)
def test_a_line_begins_where_it_enters(heights: list[float], found: tuple[list[tuple[float, float]], bool]) -> None:
    points, enters = within([Point(x, y) for x, y in enumerate(heights, start=1)], Scale(0.0, 3.0))
    assert ([(pytest.approx(point.x), point.y) for point in points], enters) == found
