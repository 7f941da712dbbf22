"""Tables and figures of a study from its committed files: results.csv, recipe.yaml and, if measured, costs.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import verdicts
from result_files import csv_rows, recipe_of

from attentiondrop.experiments.analysis.improvement import Improvement, improvement
from attentiondrop.experiments.analysis.intervals import Difference, Spread, corrected, paired_difference
from attentiondrop.experiments.analysis.outcomes import UNDONE
from attentiondrop.experiments.report.chart import Chart, Point
from attentiondrop.experiments.report.differences import verdict
from attentiondrop.experiments.report.interval_plot import ends_of, group_of, interval_marks, interval_scale
from attentiondrop.experiments.report.markup import Markup, tag
from attentiondrop.experiments.report.palette import Look, looks
from attentiondrop.experiments.report.scales import Scale, fit, without_far_off
from attentiondrop.experiments.tasks.metrics import Metric
from attentiondrop.experiments.tasks.registry import task_of

FINAL = "runs"
#: The statuses of runs that have ended without scores. (`UNDONE` has those of runs that have not ended.)
FAILED = ("diverged", "failed")
#: The look of figures that stand alone, on a white ground.
STYLE = """text { font: 11.5px sans-serif; fill: #59606b; } .code { font: 11px monospace; fill: #1d2026; }
.grid { stroke: #e4e6e9; } .axis, .zero { stroke: #9aa1ab; } .margin { fill: #e4e6e9; }
.interval { color: #59606b; } .interval.marked { color: #0a5f9e; } .bar { stroke: currentColor; stroke-width: 3; }
.thin { stroke: currentColor; } .dot, .marker { fill: currentColor; }
.whisker, .line { stroke: currentColor; fill: none; }
.c0 { color: #33373d; } .c1 { color: #0072b2; } .c2 { color: #d55e00; } .c3 { color: #00815e; } .c4 { color: #a8428f; }
.c5 { color: #a87400; } .c6 { color: #3f8fd0; } .c7 { color: #8c1c4b; }"""


@dataclass(frozen=True)
class Method:
    """One method of a study."""

    label: str
    #: Seed -> the primary metric on the test part.
    scores: dict[int, float]
    ended: int
    difference: Difference | None
    chance: Improvement | None
    #: Column of results.csv -> numbers of all seeds.
    columns: dict[str, list[float]]

    def spread(self, column: str, factor: float = 1.0) -> Spread | None:
        """Mean and deviation of a column."""
        found = self.columns.get(column)
        return Spread.of(found).times(factor) if found else None


@dataclass(frozen=True)
class Study:
    """A study as it was published."""

    #: The metric of differences.
    primary: Metric
    methods: list[Method]


def final_runs(folder: Path) -> list[dict[str, str]]:
    """The rows of results.csv, without those of tuning."""
    return [row for row in csv_rows(folder / "results.csv") if row["part"] == FINAL]


def ended(folder: Path) -> str:
    """How many of the final runs of a study have ended, whatever became of them: `13 of 50`."""
    rows = final_runs(folder)
    return f"{sum(row['status'] not in UNDONE for row in rows)} of {len(rows)}"


def read(folder: Path, baseline: str | None = None, metric: str | None = None) -> Study:
    """The study in a folder. Differences are to the first method, or to `baseline`, as it is written in full.

    They are differences of the primary metric of its task, or of the one that is named `metric`.
    """
    rows = final_runs(folder)
    recipe = recipe_of(folder)
    metrics = task_of(recipe.get("recipe", recipe)).metrics
    order = list(dict.fromkeys(row["method"] for row in rows))
    if baseline is not None:
        order = [baseline, *(label for label in order if label != baseline)]
    primary = metrics.primary if metric is None else metrics.named(metric)
    scores = {
        label: {
            int(row["seed"]): float(row[f"test_{primary.name}"])
            for row in rows
            if row["method"] == label and row["status"] == "finished"
        }
        for label in order
    }
    differences = corrected([paired_difference(scores[label], scores[order[0]]) for label in order[1:]])
    methods = []
    for label, apart in zip(order, [None, *differences], strict=True):
        own = [row for row in rows if row["method"] == label]
        columns = {
            name: [float(row[name]) for row in own if row[name]]
            for name in own[0]
            if name.startswith(("test_", "validation_", "accuracy_", "gpu_seconds", "step_seconds"))
        }
        chance = None
        if label != order[0]:
            ours, theirs = ({seed: primary.better(x) for seed, x in scores[one].items()} for one in (label, order[0]))
            chance = improvement(ours, theirs)
        methods.append(Method(label, scores[label], len(own), apart, chance, columns))
    return Study(primary, methods)


def table(study: Study, extra: dict[str, tuple[str, float, int]] | None = None) -> str:
    """The main table. `extra`: heading -> column of results.csv, factor, digits; left out if no method has numbers."""
    metric = study.primary
    extra = {
        name: one for name, one in (extra or {}).items() if any(each.columns.get(one[0]) for each in study.methods)
    }
    unit = f", {metric.difference_unit}" if metric.difference_unit else ""
    headings = ["method", "seeds", f"test {metric.label}{f', {metric.unit}' if metric.unit else ''}"]
    headings += [f"difference{unit} [95 %]", "after Holm [95 %]", "better run [95 %]", "verdict", *extra]
    lines = [f"| {' | '.join(headings)} |", "| --- | " + "---: | " * 5 + "--- | " + "---: | " * len(extra)]
    for method in study.methods:
        found = None if method.difference is None else method.difference.times(metric.factor)
        level = Spread.of(list(method.scores.values())).times(metric.factor) if method.scores else None
        cells = [f"`{method.label}`", f"{len(method.scores)} of {method.ended}"]
        cells.append("-" if level is None else level.text(metric.digits))
        if method is study.methods[0]:
            cells += ["baseline", "", "", ""]
        elif found is None:  # it shares no finished seed with the baseline
            cells += ["-", "-", "-", verdicts.NOT_RESOLVED if method.scores else "no finished run"]
        else:
            after = found.holm_interval
            cells.append(found.text(metric.digits) + (" *" if found.marked else ""))
            cells.append("-" if after is None else after.text(metric.digits))
            cells += ["-" if method.chance is None else method.chance.text(), verdict(found, metric)]
        for column, factor, digits in extra.values():
            spread = method.spread(column, factor)
            # GPU seconds are steps times one measured time of a step: that they do not vary is no sign of exactness.
            alone = None if spread is None or column != "gpu_seconds" else f"{spread.mean:.{digits}f}"
            cells.append("-" if spread is None else alone or spread.text(digits))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(line.rstrip() for line in lines)


_LEFT, _WIDTH, _ROW = 390, 820, 20
#: So many characters of a method fit beside a figure: two parts with all that they set.
_LONGEST = 56


def forest(study: Study) -> str | None:
    """The differences as a figure, the best first; None if there are none."""
    metric = study.primary
    found = [(one.label, one.difference.times(metric.factor)) for one in study.methods if one.difference is not None]
    scale = interval_scale([each for _, each in found])
    if scale is None:
        return None
    found.sort(key=lambda pair: metric.better(pair[1].mean), reverse=True)
    height = _ROW * (len(found) + 2)
    drawn: list[Markup] = []
    if metric.margin is not None:
        low, high = _place(-metric.margin, scale), _place(metric.margin, scale)
        drawn.append(tag("rect", x=low, y=_ROW, width=high - low, height=height - 2 * _ROW, class_="margin"))
    for value, text in scale.ticks(7):
        x = _place(value, scale)
        kind = "zero" if value == 0 else "grid"
        drawn.append(tag("path", d=f"M{x:.2f} {_ROW}V{height - _ROW}", class_=kind))
        drawn.append(tag("text", text, x=x, y=14, text_anchor="middle"))
    for index, (label, each) in enumerate(found):
        drawn += _row(label, each, scale, _ROW * (index + 1.5), metric)
    words = f"{metric.difference_unit or metric.label}; thick: 95 %, thin: after Holm's correction; grey: no difference"
    drawn.append(tag("text", words, x=_WIDTH, y=height - 5, text_anchor="end"))
    return _standalone(drawn, _WIDTH, height, f"Differences to {study.methods[0].label}")


def _row(label: str, each: Difference, scale: Scale, y: float, metric: Metric) -> list[Markup]:
    drawn = [tag("text", _fitting(label), x=4, y=y + 4, class_="code")]
    drawn += interval_marks(each, scale, _place, y)
    ends, text = ends_of(each), f"{each.mean:+.{metric.digits}f}"
    left = (_LEFT, 1, "start", min(ends) < scale.low, each.mean < scale.low)
    right = (_WIDTH - 2, -1, "end", max(ends) > scale.high, each.mean > scale.high)
    for x, turn, anchor, is_cut, is_off in (left, right):
        if is_cut:  # an arrow: it goes on there
            drawn.append(tag("path", d=f"M{x} {y}l{8 * turn} -5v10z", class_=f"{group_of(each)} dot"))
        if is_off:
            drawn.append(tag("text", text, x=x + 12 * turn, y=y + 4, text_anchor=anchor))
    return drawn


def _fitting(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 3]}..."


def _place(value: float, scale: Scale) -> float:
    return _LEFT + 12 + min(1.0, max(0.0, scale.place(value))) * (_WIDTH - _LEFT - 24)


def against_time(study: Study) -> str | None:
    """The primary metric against GPU seconds; None if they were not measured."""
    metric = study.primary
    points: dict[str, Point] = {}
    for one in study.methods:
        seconds, level = one.spread("gpu_seconds"), one.spread(f"test_{metric.name}", metric.factor)
        if seconds is not None and level is not None:
            std = level.std or 0.0
            points[one.label] = Point(seconds.mean, level.mean, level.mean - std, level.mean + std)
    if not points:
        return None
    heights = without_far_off([[p.y, p.low or p.y, p.high or p.y] for p in points.values()])
    scale = fit(heights, ceiling=metric.ceiling)
    chart = Chart(fit([0.0, *(p.x for p in points.values())]), scale, "GPU seconds of a run", metric.unit, 860, 360)
    chart.margin = (24, 400, 38, 46)
    styles: dict[str, Look] = looks(points)
    for index, (label, point) in enumerate(points.items()):
        chart.intervals([point], styles[label])
        chart.line([point], styles[label])
        if not scale.low <= point.y <= scale.high:
            chart.far_off(point, styles[label], f"{point.y:.{metric.digits}f}")
        y = 30 + 17 * index
        marker = tag("path", d=styles[label].marker, class_="marker", transform=f"translate(474 {y - 4})")
        chart.shape(tag("g", marker, class_=styles[label].group))
        chart.shape(tag("text", _fitting(label), x=484, y=y, class_="code"))
    inner = chart.svg(f"{metric.label} against GPU seconds")
    return _standalone([inner], 860, max(360, 40 + 17 * len(points)), f"{metric.label} against GPU seconds")


def _standalone(drawn: list[Markup], width: int, height: float, label: str) -> str:
    ground = tag("rect", x=0, y=0, width=width, height=height, fill="#ffffff")
    inside = [tag("title", label), tag("style", Markup(STYLE)), ground, *drawn]
    return str(tag("svg", *inside, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height:g}")) + "\n"


def listed(headings: str, rows: list[list[str]], words: int | None = None) -> str:
    """A table in Markdown. The columns after the first `words` hold numbers, which stand at the right."""
    names = headings.split(" | ")
    left = len(names) if words is None else words
    lines = [names, ["---"] * left + ["---:"] * (len(names) - left), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
