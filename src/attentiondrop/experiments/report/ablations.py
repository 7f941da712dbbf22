"""Ablations on the validation part: a grid of two fields is a heat map, a grid of one field a line with intervals."""

from __future__ import annotations

import itertools
from typing import Any

from ..analysis.intervals import Difference, signed
from ..analysis.remarks import ablation_remark, origin_remarks, status_counts
from ..analysis.summary import Cell as Place
from ..analysis.summary import GridSummary, Summary
from ..methods.parse import NONE
from ..tasks.metrics import Metric
from .blocks import Block, Cell, Picture, Section, Table, Text, name
from .chart import Chart, Point
from .figures import DASH, TIMES, difference, difference_heading, spread, with_unit
from .palette import Look
from .scales import Scale, fit


def ablations(summary: Summary) -> Section | None:
    """The section; None if there is no ablation."""
    baseline = summary.grid_baseline
    if baseline is None:
        return None
    seeds = len(baseline.outcomes)
    metric = summary.metrics.primary
    level = "has no finished run"
    if baseline.score is not None:
        level = f"reaches {with_unit(baseline.score, metric)} {metric.label}"
    start = f"Judged on the validation part, never on the test part; {seeds} seed{'s' * (seeds != 1)} at each point. "
    blocks: list[Block] = [Text(f"{start}The baseline `{baseline.method}` {level} there.")]
    for grid in summary.grids:
        blocks += (_heat_map if len(grid.grid.axes) == 2 else _line)(grid, metric)
    # The results section says which runs do not count. Without a comparison there is none, so say it here.
    lines = [ablation_remark(summary, quote="`"), *([] if summary.rows else origin_remarks(summary))]
    blocks += map(Text, lines)
    return Section("ablation", "Ablation", blocks)


def _heat_map(grid: GridSummary, metric: Metric) -> list[Block]:
    (first, rows), (second, columns) = grid.grid.axes.items()
    places = {place.values: place for place in grid.cells}
    means = [abs(place.difference.mean) for place in grid.cells if place.difference is not None]
    strongest = max(means, default=0.0) or 1.0
    to_baseline = f"difference of validation {metric.label} to the baseline{metric.after_difference}"
    caption = f"`{grid.grid.name}`: {to_baseline} [95 % interval]"
    body: list[list[str | Cell]] = [
        [Cell(_value(row), words=True), *(_heat(places[row, column], metric, strongest) for column in columns)]
        for row in rows
    ]
    return [Table(caption, [first, *map(_value, columns)], body, across=second, heat=True)]


def _heat(place: Place, metric: Metric, strongest: float) -> Cell:
    if place.difference is None:
        return Cell(status_counts(place.outcomes) or ("baseline" if place.method == NONE else DASH), words=True)
    text = place.difference.times(metric.factor).text(metric.digits)
    if lost := status_counts(place.outcomes):  # its mean has fewer seeds than the others
        text += f" ({lost})"
    return Cell(text, marked=place.difference.marked, shade=metric.better(place.difference.mean) / strongest)


def _line(grid: GridSummary, metric: Metric) -> list[Block]:
    field = f" {TIMES} ".join(grid.grid.axes)
    caption = f"`{grid.grid.name}` by `{field}`, on the validation part"
    body: list[list[str | Cell]] = [
        [
            Cell(_values(place), words=True),
            name(place.method),
            spread(place.score, metric.digits, metric.factor),
            difference(place.difference, metric.digits, metric.factor),
            Cell(status_counts(place.outcomes) or DASH, words=True),
        ]
        for place in grid.cells
    ]
    headings: list[str | Cell] = [field, Cell("Method", words=True), metric.heading, difference_heading(metric)]
    table = Table(caption, [*headings, Cell("Not finished", words=True)], body)
    picture = _plot(grid, metric, field)
    return [table] if picture is None else [picture, table]


def _plot(grid: GridSummary, metric: Metric, field: str) -> Picture | None:
    labels = [_values(place) for place in grid.cells]
    places = _positions([place.values[0] if len(place.values) == 1 else None for place in grid.cells])
    known = [
        (label, _point(at, place.difference.times(metric.factor)))
        for label, at, place in zip(labels, places, grid.cells, strict=True)
        if place.difference is not None
    ]
    if len(known) < 2:
        return None
    points = [point for _, point in known]
    heights = [value for point in points for value in (point.y, point.low, point.high) if value is not None]
    chart = Chart(
        _padded(places),
        fit([0.0, *heights]),
        field,
        f"difference{metric.after_difference}",
        x_ticks=list(zip(places, labels, strict=True)),
    )
    chart.rule(0.0)
    chart.intervals(points, Look(None))
    chart.line(points, Look(None))
    words = [f"{signed(point.y, metric.digits)} at {label}" for label, point in known]
    to_baseline = f"Difference of validation {metric.label} to the baseline{metric.after_difference}"
    text = f"{to_baseline}, by {field}: {'; '.join(words)}."
    svg = chart.svg(text)
    return Picture(
        svg, f"`{grid.grid.name}` by `{field}`: mean over paired seeds, with 95 % intervals; dashed, the baseline."
    )


def _point(at: float, found: Difference) -> Point:
    if found.interval is None:
        return Point(at, found.mean)
    return Point(at, found.mean, found.interval.low, found.interval.high)


def _positions(values: list[Any]) -> list[float]:
    """Positions on the axis: the numbers themselves, or equal distances if labels would overlap."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) > 1 and numbers == sorted(set(numbers)):
        closest = min(after - before for before, after in itertools.pairwise(numbers))
        if closest > 0.07 * (numbers[-1] - numbers[0]):
            return numbers
    return [float(index) for index in range(len(values))]


def _padded(places: list[float]) -> Scale:
    room = 0.05 * (places[-1] - places[0])
    return Scale(places[0] - room, places[-1] + room)


def _values(place: Place) -> str:
    return f" {TIMES} ".join(map(_value, place.values))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
