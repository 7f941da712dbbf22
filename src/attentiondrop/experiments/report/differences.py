"""Every difference to the baseline, the largest first: a forest plot with intervals before and after correction.

Readers of the page can choose another baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.collect import against
from ..analysis.intervals import Difference
from ..analysis.summary import Row, Summary
from ..tasks.metrics import Metric
from .baselines import comparable, offered
from .blocks import Block, Cell, Choice, Notes, Option, Section, Table, name
from .figures import NOTHING, difference, difference_heading, p_value
from .interval_plot import interval_axis, interval_plot, interval_scale
from .markup import Markup

_ANOTHER = "Differences to another method: write the report again with `--baseline METHOD`."


def differences(summary: Summary) -> Section | None:
    """The section; None if nothing was compared."""
    fixed = _blocks(summary, more=[_ANOTHER])
    if not fixed:
        return None
    rows = offered(summary)
    # The results above have p values too, but for the baseline of the report only.
    options = [Option(row.label, _blocks(against(summary, row), with_p=True)) for row in rows]
    choice = [Choice("baseline", "Differences to", _hint(summary, rows), options, otherwise=fixed)] if rows else []
    return Section("differences", "Differences", [*(choice or fixed)])


def _hint(summary: Summary, rows: Sequence[Row]) -> str:
    count = len(comparable(summary))
    again = "write the report again with `--baseline METHOD`."
    more = f"For all sections with another one, {again}"
    if len(rows) < count:
        more = f"Of the {count} methods, the controls and the best one can be chosen here; for any other, {again}"
    # The more baselines a reader looks at, the more differences are taken for real by chance.
    counted = "Holm's correction counts the differences to one baseline, not those to all that can be chosen."
    return f"The other sections of this page keep the baseline `{rows[0].label}`. {more} {counted}"


def _blocks(summary: Summary, with_p: bool = False, more: Sequence[str] = ()) -> list[Block]:
    """The table with its forest plot, and notes; empty if nothing was compared."""
    metric = summary.metrics.primary
    found = [(row, row.difference.times(metric.factor)) for row in summary.rows if row.difference is not None]
    scale = interval_scale([each for _, each in found])
    if scale is None or summary.baseline is None:
        return []
    found.sort(key=lambda pair: metric.better(pair[1].mean), reverse=True)
    counted = f"{metric.difference_unit} of {metric.label}" if metric.difference_unit else metric.label
    headings: list[str | Cell] = ["Method", Cell("", plot=interval_axis(scale, counted)), difference_heading(metric)]
    headings += ["after Holm [95 %]", *["p (Holm)"] * with_p, "Better run [95 %]", Cell("Verdict", words=True)]
    body = [_row(row, each, metric, interval_plot(each, scale, metric.margin), with_p) for row, each in found]
    caption = (
        f"Paired differences to `{summary.baseline.label}`, the best first; arrows point to what lies beyond the axis"
    )
    return [Table(caption, headings, body), Notes(_notes(summary, metric, more))]


def _row(row: Row, each: Difference, metric: Metric, plot: Markup, with_p: bool) -> list[str | Cell]:
    after, chance = each.holm_interval, row.improvement
    return [
        name(row.label),
        Cell("", plot=plot),
        difference(row.difference, metric.digits, metric.factor),
        NOTHING if after is None else after.text(metric.digits),
        *[p_value(row.holm_p)] * with_p,
        NOTHING if chance is None else chance.text(),
        Cell(verdict(each, metric), words=True),
    ]


def verdict(each: Difference, metric: Metric) -> str:
    """What may be said of a difference, as it is shown, after correction."""
    if each.marked:
        return "better" if metric.better(each.mean) > 0 else "worse"
    joint = each.joint_interval
    if joint is not None and metric.margin is not None and joint.within(metric.margin):
        return "no difference"
    return "not resolved"


def _notes(summary: Summary, metric: Metric, more: Sequence[str]) -> list[str]:
    unit = f" {metric.difference_unit}" if metric.difference_unit else ""
    lines = [
        "Thick: the 95 % interval of one difference. Thin: the interval after Holm's correction for all "
        f"{summary.comparisons}; it excludes zero exactly if p (Holm) is below 0.05.",
        "Better run: the probability that a run of the method is better than a run of the baseline, over all pairs, "
        "with Wilson's interval for so many seeds.",
        *more,
    ]
    if metric.margin is not None:
        count = summary.comparisons
        lines.append(
            "Verdict: better or worse if the corrected interval excludes zero; no difference if the interval after "
            f"Bonferroni's correction for all {count} comparisons lies within ±{metric.margin:g}{unit} (grey); "
            "otherwise not resolved."
        )
    return lines
