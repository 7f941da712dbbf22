"""Reliability diagrams: how often predictions of a given confidence are right, over all seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...scores import ReliabilityDiagram
from ..analysis.intervals import by_chance
from ..analysis.remarks import INTERVALS, MARK, counts
from ..analysis.summary import Row, Summary
from ..tasks.metrics import PERCENT, Metric
from .blocks import Block, Cell, Picture, Section, Table, Text, name
from .chart import Chart, Point
from .figures import difference, listed, notes_on
from .markup import Markup, code, tag
from .palette import Look
from .scales import Scale

CAPTION = (
    "Accuracy over confidence on the test part, predictions of all seeds together; empty bins are left out. On the "
    "diagonal, confidence equals accuracy; below it, the model is overconfident. Grey bars: the share of predictions "
    "in each bin."
)


@dataclass(frozen=True)
class Bin:
    """One bin of confidence over all seeds."""

    confidence: float
    accuracy: float
    count: int
    index: int


def calibration(summary: Summary, looks: dict[str, Look]) -> Section | None:
    """The section; None if there is nothing to show."""
    blocks: list[Block] = []
    if any(len(row.differences) > 1 for row in summary.rows):
        blocks += [_differences(summary), *map(Text, notes_on(_compared(summary)))]
    drawn = []
    for row in summary.rows:
        bins, width = pooled(row)
        if bins:
            drawn.append(_diagram(row, bins, width, looks[row.label]))
    if drawn:
        blocks.append(Picture(tag("div", *drawn, class_="multiples"), CAPTION))
    # Tasks without a diagram have other metrics than those of calibration.
    title = "Calibration" if drawn or any(metric.name == "ece" for metric in summary.metrics.all) else "Other metrics"
    return Section("calibration", title, blocks) if blocks else None


def _differences(summary: Summary) -> Table:
    primary, others = summary.metrics.primary, _compared(summary)
    body: list[list[str | Cell]] = [
        [
            name(row.label),
            *(difference(row.differences.get(each.name), each.digits, each.factor) for each in others),
        ]
        for row in summary.rows[1:]
    ]
    count, excluding, _ = counts(
        [each for row in summary.rows for key, each in row.differences.items() if key != primary.name]
    )
    caption = (
        f"Differences to the baseline, mean over paired seeds [{INTERVALS[summary.interval]}]; {_directions(others)}. "
        f"{excluding} of {count} intervals exclude zero (by chance alone, about {by_chance(summary.interval)} would); "
        f"{MARK} marks what remains after Holm's correction for all {count}"
    )
    return Table(caption, ["Method", *(_heading(each) for each in others)], body)


def _compared(summary: Summary) -> list[Metric]:
    return [metric for metric in summary.other_metrics if metric.compared]


def _heading(metric: Metric) -> str:
    return f"{metric.title}{metric.after_difference}" if metric.unit == PERCENT else metric.title


def _directions(metrics: Sequence[Metric]) -> str:
    """Which direction is better, said once if it is the same for all metrics."""
    if len({metric.higher_is_better for metric in metrics}) == 1:
        return f"{'higher' if metrics[0].higher_is_better else 'lower'} is better"
    higher = [metric.label for metric in metrics if metric.higher_is_better]
    return f"lower is better, but higher for {listed(higher)}"


def pooled(row: Row) -> tuple[list[Bin], int]:
    """The bins with predictions, and the number of all bins. Seeds with other bins than the first are left out."""
    found = [each.result.reliability for each in row.outcomes if each.result and each.result.reliability]
    if not found:
        return [], 0
    width = len(found[0].count)
    same = [each for each in found if len(each.count) == width]
    bins = [_bin(index, same) for index in range(width)]
    return [each for each in bins if each is not None], width


def _bin(index: int, seeds: list[ReliabilityDiagram]) -> Bin | None:
    filled = [
        (confidence, accuracy, each.count[index])
        for each in seeds
        if (confidence := each.confidence[index]) is not None and (accuracy := each.accuracy[index]) is not None
    ]
    total = sum(count for _, _, count in filled)
    if total == 0:
        return None
    confidence = sum(confidence * count for confidence, _, count in filled) / total
    return Bin(confidence, sum(accuracy * count for _, accuracy, count in filled) / total, total, index)


def _diagram(row: Row, bins: list[Bin], width: int, look: Look) -> Markup:
    unit = Scale(0.0, 1.0)
    chart = Chart(unit, unit, "confidence", "accuracy", width=240, height=250, margin=(24, 10, 36, 32))
    chart.x_ticks = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")]
    largest = max(each.count for each in bins)
    for each in bins:
        left, right = chart.left(each.index / width), chart.left((each.index + 1) / width)
        top = chart.top(0.3 * each.count / largest)
        floor = chart.top(0)
        chart.shape(tag("path", d=f"M{left + 0.5:.2f} {floor}V{top:.2f}H{right - 0.5:.2f}V{floor}Z", class_="share"))
    chart.shape(tag("path", d=f"M{chart.left(0)} {chart.top(0)}L{chart.left(1)} {chart.top(1)}", class_="rule"))
    gaps = "".join(
        f"M{chart.left(b.confidence):.2f} {chart.top(b.confidence):.2f}V{chart.top(b.accuracy):.2f}" for b in bins
    )
    chart.shape(tag("g", tag("path", d=gaps, class_="gap"), class_=look.group))
    chart.line([Point(each.confidence, each.accuracy) for each in bins], look)
    error = row.scores.get("ece")
    ece = "" if error is None else f"ECE {error.times(100).text(2)} %"
    words = [f"{each.accuracy:.0%} right at a confidence of {each.confidence:.0%}" for each in bins]
    label = f"Reliability of {row.label}: {'; '.join(words)}. {ece}"
    caption = tag("figcaption", code(row.label), tag("span", ece))
    return tag("figure", caption, chart.svg(label), class_="panel")
