"""Single parts of the report: escaping, scales, curves, pooled bins, looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentiondrop.experiments.analysis.outcomes import Outcome
from attentiondrop.experiments.analysis.summary import Row
from attentiondrop.experiments.report import render_html, render_markdown
from attentiondrop.experiments.report.ablations import _positions
from attentiondrop.experiments.report.blocks import Cell, Code, Notes, Table, Text
from attentiondrop.experiments.report.calibration import pooled
from attentiondrop.experiments.report.chart import Chart, Point
from attentiondrop.experiments.report.figures import listed, p_value, plural
from attentiondrop.experiments.report.markup import Markup, join, tag
from attentiondrop.experiments.report.palette import COLOURS, looks
from attentiondrop.experiments.report.robustness import which_examples
from attentiondrop.experiments.report.scales import Scale, fit
from attentiondrop.experiments.report.series import by_epoch, stretches
from attentiondrop.experiments.runs.store import Request, Result, Run
from attentiondrop.experiments.studies.plan import Entry
from attentiondrop.experiments.tasks.classification.task import Classification
from attentiondrop.experiments.train.epoch_log import Epoch
from attentiondrop.scores import ReliabilityDiagram, RobustnessReport

from ..conftest import scored


def outcome(seed: int, accuracies: list[float | None], result: Result | None = None, **changes: object) -> Outcome:
    scores = [None if value is None else scored(value, 1.0) for value in accuracies]
    epochs = [Epoch(index, 0.1, 1.0, found, 1.0, 1) for index, found in enumerate(scores, start=1)]
    ended = result or Result("finished", 1.0, len(epochs), test=scored(0.9, 0.1, 0.1, 0.1), **changes)
    return Outcome("none", seed, "runs", Run(Path(), Request("none", seed, {}, {}), {}, epochs, ended))


def accuracy(epoch: Epoch) -> float | None:
    return None if epoch.validation is None else epoch.validation["accuracy"]


def test_everything_is_escaped_but_markup() -> None:
    assert tag("p", "<script>alert('&')</script>") == "<p>&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;</p>"
    assert tag("p", 'a "b"', title='x" onload="y') == '<p title="x&#34; onload=&#34;y">a &#34;b&#34;</p>'
    assert join("<", Markup("<b>x</b>")) == "&lt;<b>x</b>"
    assert tag("line", x1=1.0, x2=2.504, y1=None) == '<line x1="1" x2="2.5"/>'
    assert render_html.inline("`a<b` & c") == "<code>a&lt;b</code> &amp; c"


def test_markdown_takes_no_text_for_markup() -> None:
    assert render_markdown.escape("<b> & `x < y`\nnext") == "&lt;b&gt; &amp; `x < y` next"
    table = Table(
        "Caption", ["A", Cell("B", words=True), "C"], [[Cell("a|b", code=True), Cell("<i>"), Cell("1", marked=True)]]
    )
    assert render_markdown.block(table).splitlines() == [
        "**Caption**",
        "",
        "| A | B | C |",
        "| --- | --- | ---: |",
        "| `a\\|b` | &lt;i&gt; | 1 \\* |",
    ]
    assert render_markdown.block(Code("a ``` b")) == "````\na ``` b\n````"
    assert render_markdown.block(Notes(["a", "b"])) == "- a\n- b"
    assert render_markdown.block(Text("x")) == "x"


def test_a_heat_map_says_what_its_colours_mean_in_html_only() -> None:
    table = Table("Map", ["p", "1"], [["0.1", Cell("-0.5", shade=-2.0)]], across="k", heat=True)
    html = render_html.block(table)
    assert 'class="below" style="--strength:1.000"' in html
    assert "Blue is better" in html and "Blue" not in render_markdown.block(table)
    assert "| p \\ k | 1 |" in render_markdown.block(table)
    assert '<th colspan="1" scope="colgroup" class="across">k</th>' in html


@pytest.mark.parametrize(
    ("scale", "labels"),
    [
        (Scale(0, 100), ["0", "20", "40", "60", "80", "100"]),
        (Scale(1, 30, whole=True), ["5", "10", "15", "20", "25", "30"]),
        (Scale(1, 3, whole=True), ["1", "2", "3"]),
        (Scale(-0.11, 0.12), ["\u22120.10", "\u22120.05", "0.00", "0.05", "0.10"]),
        (Scale(0, 1.25), ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25"]),
        (Scale(0.02, 30, log=True), ["0.1", "1", "10"]),
        (Scale(0.9, 11, log=True), ["1", "2", "5", "10"]),
    ],
)
def test_ticks_are_round_and_inside(scale: Scale, labels: list[str]) -> None:
    ticks = scale.ticks(6)
    assert [text for _, text in ticks] == labels
    assert all(-1e-9 <= scale.place(value) <= 1 + 1e-9 for value, _ in ticks)


def test_a_scale_holds_its_values() -> None:
    assert Scale(1, 10, log=True).place(0.0) == Scale(1, 10, log=True).place(-1.0) == float("-inf")
    assert fit([0.5, 0.5]).low < 0.5 < fit([0.5, 0.5]).high
    assert fit([0.0, 0.0]).place(0.0) == 0.5
    assert fit([20.0, 99.0], ceiling=100).high == 100
    assert fit([100.0, 100.0], ceiling=100).high == 100  # one value, which is the largest possible
    assert fit([1.0, 2.0], log=True).log is False
    assert fit([0.01, 2.0], log=True).log is True
    assert fit([0.0, 2.0], log=True).log is False
    assert fit([1.0, 50.0]).low == 0.0
    assert fit([-5.0, 5.0]).low < -5.0


def test_curves_are_means_over_finished_runs_with_gaps() -> None:
    diverged = outcome(2, [0.1, 0.1], Result("diverged", 1.0, 2))
    points = by_epoch([outcome(0, [0.2, None, 0.6, 0.7]), outcome(1, [0.4, None, 0.8, 0.9]), diverged], accuracy)
    assert [point.x for point in points] == [1, 3, 4]
    assert points[0].y == pytest.approx(0.3)
    assert points[0].high - points[0].y == pytest.approx(0.2 / 2**0.5)
    assert [[point.x for point in part] for part in stretches(points)] == [[1], [3, 4]]
    best = by_epoch([outcome(0, [0.5, 0.4, None, 0.6])], accuracy, best=max)
    assert [(point.x, point.y, point.low) for point in best] == [
        (1, 0.5, None),
        (2, 0.5, None),
        (3, 0.5, None),
        (4, 0.6, None),
    ]


def test_an_epoch_that_was_recorded_twice_counts_once() -> None:
    one = outcome(0, [0.1, 0.2])
    one.run.epochs.append(Epoch(2, 0.1, 1.0, scored(0.3), 1.0, 1))
    assert [point.y for point in by_epoch([one], accuracy)] == [0.1, 0.3]


def test_bins_are_pooled_by_their_counts() -> None:
    first = ReliabilityDiagram([None, 0.6], [None, 0.5], [0, 10])
    second = ReliabilityDiagram([0.2, 0.8], [0.1, 0.9], [4, 30])
    other = ReliabilityDiagram([0.5], [0.5], [99])
    outcomes = tuple(outcome(seed, [0.5], reliability=each) for seed, each in enumerate((first, second, other)))
    bins, width = pooled(Row(Entry("none", "none", []), outcomes, Classification.metrics.primary))
    assert width == 2
    assert [(each.index, each.count) for each in bins] == [(0, 4), (1, 40)]
    assert bins[1].confidence == pytest.approx((0.6 * 10 + 0.8 * 30) / 40)
    assert bins[1].accuracy == pytest.approx((0.5 * 10 + 0.9 * 30) / 40)


def test_no_two_methods_look_the_same() -> None:
    found = looks(str(number) for number in range(3 * COLOURS))
    seen = {(look.group, look.dashes, look.marker) for look in found.values()}
    assert len(seen) == len(found)
    assert len({look.group for look in list(found.values())[:COLOURS]}) == COLOURS


def test_lines_stay_within_the_axes() -> None:
    chart = Chart(Scale(0, 1), Scale(0, 1), "x", "y")
    chart.line([Point(0, -5.0), Point(1, 5.0)], looks(["none"])["none"])
    assert 'd="M46.00 232.00L408.00 24.00"' in chart.svg("label")
    assert chart.svg('say "hi" <b>').startswith(
        '<svg viewBox="0 0 420 270" class="plot" role="img" aria-label="say &#34;hi'
    )


def test_a_number_beyond_the_axis_is_written_inside_the_plot() -> None:
    chart = Chart(Scale(0, 1), Scale(0, 1), "x", "y")
    chart.far_off(Point(0.5, -5.0), looks(["none"])["none"], "-5.0")
    assert '<text x="235" y="228" class="note">-5.0</text>' in chart.svg("label")  # the axis is at 232


def test_a_tall_plot_has_more_ticks() -> None:
    low, tall = (Chart(Scale(0, 1), Scale(70.4, 75.9), "x", "y", height=height).svg("") for height in (270, 340))
    assert low.count('class="grid"') == 2 and tall.count('class="grid"') == 5


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([0.25, 0.5, 1.0], [0.25, 0.5, 1.0]),
        ([1, 2, 100], [0.0, 1.0, 2.0]),
        ([3, 1, 2], [0.0, 1.0, 2.0]),
        (["keys", "both"], [0.0, 1.0]),
        ([True, False], [0.0, 1.0]),
        ([0.5], [0.0]),
    ],
)
def test_places_of_an_ablation(values: list[object], places: list[float]) -> None:
    assert _positions(values) == places


def test_words() -> None:
    assert listed(["a"]) == "a" and listed(["a", "b", "c"]) == "a, b and c"
    assert plural(1, "seed") == "1 seed" and plural(0, "seed") == "0 seeds"
    assert p_value(0.0001) == "< 0.001" and p_value(0.0456) == "0.046"


@pytest.mark.parametrize(
    ("choice", "counts", "said"),
    [
        ({}, None, "the first 200 test examples"),
        ({"pgd_choice": "stratified"}, {"test": 360}, "200 test examples of all classes"),
        ({"pgd_choice": "stratified"}, {"test": 200}, "all 200 test examples"),
    ],
)
def test_which_images_were_attacked_is_said(choice: dict[str, str], counts: dict[str, int] | None, said: str) -> None:
    attack = RobustnessReport("linf", [0.0, 0.1], [0.9, 0.1], 20, 1, 200, True)
    scored_from = {"evaluation": choice} if choice else None
    ended = Result("finished", 1.0, 1, robustness=attack, counts=counts, scored=scored_from)
    run = Run(Path(), Request("none", 0, {"evaluation": {"pgd_examples": 200}}, {}), {}, [], ended)
    assert which_examples(run, attack) == said
