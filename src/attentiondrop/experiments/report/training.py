"""Plots of training by epoch: validation metric, loss, gradient variance, convergence, attention entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..analysis.collect import REACH
from ..analysis.summary import Row, Summary
from ..tasks.metrics import Metric
from .beginnings import hides, later, within
from .blocks import Block, Picture, Section, Text
from .chart import Chart, Point
from .markup import Markup, join, tag
from .palette import Look, legend
from .scales import Scale, fit, without_far_off
from .series import Best, Value, by_epoch, stretches


@dataclass(frozen=True)
class Panel:
    """One plot over the epochs. `sparse` means measured only at some epochs; its points are still joined by lines."""

    title: str
    unit: str
    value: Value
    note: str = ""
    factor: float = 1.0
    ceiling: float | None = None
    #: `max` or `min`: draw the best value so far. None: draw the value of each epoch.
    best: Best | None = None
    sparse: bool = False
    log: bool = False
    target: tuple[float, str] | None = None


PANELS = (
    Panel(
        "Training loss",
        "nats",
        lambda epoch: epoch.train_loss,
        "It includes what a method does in training, so its level is not comparable between methods.",
        log=True,
    ),
    Panel(
        "Gradient variance",
        "trace of the covariance",
        lambda epoch: epoch.gradient_variance,
        "Measured at the markers; the lines between them only guide the eye.",
        sparse=True,
        log=True,
    ),
)
ENTROPY = (
    Panel(
        "Attention entropy of the model",
        "nats",
        lambda epoch: epoch.attention_entropy,
        "Mean over rows, heads and layers; lower is more concentrated.",
        sparse=True,
    ),
    Panel(
        "Attention entropy in training",
        "nats",
        lambda epoch: epoch.perturbed_entropy,
        "The same, after the method has changed the attention.",
        sparse=True,
    ),
)
CAPTION = "Mean over the seeds of finished runs, by epoch; bands are one standard deviation to both sides."


def training(summary: Summary, looks: dict[str, Look]) -> Section | None:
    """The section; None if no run has finished."""
    target = next((row.reach.target for row in summary.rows if row.reach is not None), None)
    metric = summary.metrics.each_epoch
    panels = [_validation(metric), *PANELS, *([_convergence(metric, target)] if target else []), *ENTROPY]
    if _validates_seldom(summary):
        panels = [replace(panel, sparse=panel.sparse or panel not in PANELS) for panel in panels]
    drawn = {panel.title: _panel(panel, summary.rows, looks) for panel in panels}
    if not any(drawn.values()):
        return None
    shown = {row.label: looks[row.label] for row in summary.rows if row.count("finished")}
    figures = tag("div", *(figure for figure in drawn.values() if figure is not None), class_="panels")
    blocks: list[Block] = [Picture(join(legend(shown), figures), CAPTION)]
    missing = [title.lower() for title, figure in drawn.items() if figure is None]
    if missing:
        blocks.append(Text(f"Not measured in these runs: {', '.join(missing)}."))
    return Section("training", "Training", blocks)


def _validates_seldom(summary: Summary) -> bool:
    """Whether only some epochs have validation scores."""
    settings = summary.plan.recipe.get("training")
    return isinstance(settings, dict) and settings.get("validate_every", 1) != 1


def _value(metric: Metric) -> Value:
    return lambda epoch: None if epoch.validation is None else epoch.validation.get(metric.name)


def _validation(metric: Metric) -> Panel:
    return Panel(
        f"Validation {metric.label}", metric.unit, _value(metric), factor=metric.factor, ceiling=metric.ceiling
    )


def _convergence(metric: Metric, target: float) -> Panel:
    """In per cent of the final value of the baseline. A metric for which lower is better keeps its own unit."""
    note = f"Best validation {metric.label} so far; the dashed line is the target of the table above."
    best = max if metric.higher_is_better else min
    if not metric.higher_is_better:
        goal = (metric.factor * target, "target")
        return Panel("Convergence", metric.unit, _value(metric), note, metric.factor, best=best, target=goal)
    return Panel(
        "Convergence",
        f"% of the baseline's final {metric.label}",
        _value(metric),
        note,
        factor=100 * REACH / target,
        best=best,
        target=(100 * REACH, f"{100 * REACH:g} %"),
    )


def _points(panel: Panel, row: Row) -> list[Point]:
    def scaled(value: float | None) -> float | None:
        return None if value is None else value * panel.factor

    points = by_epoch(row.outcomes, panel.value, best=panel.best)
    return [
        replace(point, y=point.y * panel.factor, low=scaled(point.low), high=scaled(point.high)) for point in points
    ]


def _panel(panel: Panel, rows: Sequence[Row], looks: dict[str, Look]) -> Markup | None:
    curves = {row.label: points for row in rows if (points := _points(panel, row))}
    if not curves:
        return None
    last = max(*(point.x for points in curves.values() for point in points), 2)
    scale, is_cut = _axis(panel, list(curves.values()))
    unit = f"{panel.unit}, logarithmic" if scale.log else panel.unit
    chart = Chart(Scale(1, last, whole=True), scale, "epoch", unit)
    chart.x_ticks = _epoch_ticks(int(last))
    if panel.target is not None:
        chart.rule(*panel.target, below=panel.best is min)  # where curves come from above
    parts = {label: [points] if panel.sparse else stretches(points) for label, points in curves.items()}
    shown = {
        label: [within(part, scale) if is_cut else (part, False) for part in each] for label, each in parts.items()
    }
    for label, each in shown.items():
        for part, _ in each:
            chart.band(part, looks[label])
    # The best value so far exists at every epoch, even if few epochs are validated.
    every = 1 if panel.sparse and panel.best is None else max(1, int(last) // 6)
    for label, points in curves.items():
        for part, enters in shown[label]:
            chart.line(part, looks[label], every, enters=enters)
        if not scale.low <= points[-1].y <= scale.high:
            chart.far_off(points[-1], looks[label], f"{points[-1].y:.3g}")
    notes = [panel.note, "The axis leaves out the first epochs." if is_cut else ""]
    note = " ".join(one for one in notes if one)
    caption = tag("figcaption", panel.title, *([tag("span", note)] if note else []))
    return tag("figure", caption, chart.svg(_words(panel, curves)), class_="panel")


def _axis(panel: Panel, curves: Sequence[Sequence[Point]]) -> tuple[Scale, bool]:
    """The vertical axis, and whether it leaves out beginnings that would hide the rest."""

    def heights(of: Sequence[Sequence[Point]]) -> list[float]:
        found = _without_far_off([_heights(points, panel.log) for points in of], panel.log)
        return found if panel.target is None else [*found, panel.target[0]]

    every, rest = heights(curves), heights([later(points) for points in curves])
    scale = fit(every, ceiling=panel.ceiling, log=panel.log)
    if scale.log or not hides(every, rest):
        return scale, False
    return fit(rest, ceiling=panel.ceiling), True


def _without_far_off(heights: list[list[float]], log: bool) -> list[float]:
    """What may be drawn on a logarithmic axis is far off if it is so there: 20 is not far from 10, 1 and 0.1."""
    if not log or min(map(min, heights)) <= 0:
        return without_far_off(heights)
    return [math.exp(each) for each in without_far_off([[math.log(each) for each in group] for group in heights])]


def _heights(points: Sequence[Point], log: bool) -> list[float]:
    """What the axis must hold of one curve: its values, and its band."""
    found = [point.y for point in points] + [point.high for point in points if point.high is not None]
    # On a logarithmic axis, a band may reach below zero.
    return found if log else found + [max(0.0, point.low) for point in points if point.low is not None]


def _epoch_ticks(last: int) -> list[tuple[float, str]]:
    ticks = [tick for tick in Scale(1, last, whole=True).ticks(7) if tick[0] >= 1]
    return ticks if ticks[0][0] == 1 else [(1.0, "1"), *ticks]


def _words(panel: Panel, curves: dict[str, list[Point]]) -> str:
    lines = [
        f"{label} from {points[0].y:.3g} at epoch {points[0].x:g} to {points[-1].y:.3g} at epoch {points[-1].x:g}"
        for label, points in curves.items()
    ]
    return f"{panel.title} by epoch, in {panel.unit}: {'; '.join(lines)}."
