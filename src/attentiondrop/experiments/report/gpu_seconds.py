"""The score of every method against its time: a method that needs two passes must beat longer training."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.summary import Row, Summary
from ..tasks.metrics import Metric
from .blocks import Block, Cell, Picture, Section, Table, Text, name
from .chart import Chart, Point
from .figures import NOTHING, TIMES, spread
from .markup import join, tag
from .palette import Look, legend
from .scales import fit, without_far_off

HOW = {
    "GPU": "GPU seconds: the steps of a run times the time of one step that was measured alone, augmentation included, "
    "validation not.",
    "Training": "Training seconds: the steps of a run times the time of one step, with augmentation, without "
    "validation. Other programs on the machine may have slowed it down.",
}
#: For rows without a step that was measured alone.
IN_THE_RUN = (
    "Where the time of a step was measured in the run itself, seconds are the samples of the run divided by its "
    "throughput. These runs did not share the machine with other runs of the study."
)


def gpu_seconds(summary: Summary, looks: dict[str, Look]) -> Section | None:
    """The section; None if no step was measured alone."""
    metric = summary.metrics.primary
    rows = [row for row in summary.rows if row.gpu_seconds is not None and metric.name in row.scores]
    if not rows:
        return None
    kind = _kind(rows)
    seconds = f"{kind} seconds"
    points = {row.label: _point(row, metric) for row in rows}
    times = fit([0.0, *(point.x for point in points.values())])
    heights = without_far_off([[p.y, *(x for x in (p.low, p.high) if x is not None)] for p in points.values()])
    scale = fit(heights, ceiling=metric.ceiling)
    chart = Chart(times, scale, f"{seconds} of a run", metric.unit, width=640, height=340)
    for label, point in points.items():
        chart.intervals([point], looks[label])
        chart.line([point], looks[label])
        if not chart.y.low <= point.y <= chart.y.high:
            chart.far_off(point, looks[label], f"{point.y:.{metric.digits}f}")
    words = "; ".join(f"{label} {point.y:.{metric.digits}f} in {point.x:.1f} s" for label, point in points.items())
    figure = tag("div", chart.svg(f"Test {metric.label} against {seconds}: {words}."), class_="wide")
    better = "high" if metric.higher_is_better else "low"
    caption = f"Test {metric.label}, mean and one standard deviation to both sides; {better} and left is good."
    blocks: list[Block] = [Picture(join(legend({label: looks[label] for label in points}), figure), caption)]
    headings: list[str | Cell] = ["Method", metric.heading, seconds, "to baseline", "ms a step"]
    headings.append(Cell("Step", words=True))
    blocks.append(Table(f"{seconds} of a run", headings, [_cells(row, summary.rows[0], metric) for row in rows]))
    blocks.append(Text(HOW[kind]))
    if kind == "GPU" and any(row.cost is None for row in rows):
        blocks.append(Text(IN_THE_RUN))
    devices = list(dict.fromkeys(row.cost.device for row in rows if row.cost is not None))
    if len(devices) > 1:
        blocks.append(
            Text(f"Steps were measured on different devices ({', '.join(devices)}): do not compare their times.")
        )
    return Section("gpu-seconds", f"Score against {kind if kind == 'GPU' else kind.lower()} time", blocks)


def _kind(rows: Sequence[Row]) -> str:
    """What the seconds are called: a key of `HOW`."""
    devices = [row.cost.device for row in rows if row.cost is not None]
    runs = [each.run for row in rows for each in row.outcomes if each.run is not None]
    devices = devices or [run.environment.get("device", "") for run in runs]
    return "Training" if devices and all("CPU" in device for device in devices) else "GPU"


def _point(row: Row, metric: Metric) -> Point:
    score = row.scores[metric.name].times(metric.factor)
    seconds = 0.0 if row.gpu_seconds is None else row.gpu_seconds.mean
    if score.std is None:
        return Point(seconds, score.mean)
    return Point(seconds, score.mean, score.mean - score.std, score.mean + score.std)


def _cells(row: Row, baseline: Row, metric: Metric) -> list[str | Cell]:
    seconds, base = row.gpu_seconds, baseline.gpu_seconds
    ratio = NOTHING if seconds is None or base is None or base.mean == 0 else f"{TIMES} {seconds.mean / base.mean:.2f}"
    cost = row.cost
    return [
        name(row.label),
        spread(row.scores.get(metric.name), metric.digits, metric.factor),
        NOTHING if seconds is None else f"{seconds.mean:.1f}",
        ratio,
        NOTHING if cost is None else f"{1e3 * cost.seconds:.2f}",
        Cell("measured in the run itself" if cost is None else cost.capture, words=True),
    ]
