"""The results: a row per method with its difference to the baseline, other scores, and the score of every run."""

from __future__ import annotations

from ..analysis.collect import REACH
from ..analysis.remarks import difference_remark, origin_remarks, remarks
from ..analysis.summary import Row, Summary
from .blocks import Block, Cell, Notes, Section, Table, Text, name
from .exhibited import signatures
from .figures import NOTHING, difference, difference_heading, notes_on, p_value, spread
from .interval_plot import interval_axis, interval_plot, interval_scale


def results(summary: Summary) -> Section | None:
    """The section; None if there is no comparison."""
    if not summary.rows:
        return None
    lines = [*remarks(summary, quote="`"), *origin_remarks(summary)]
    if summary.comparisons:
        lines.insert(0, difference_remark(summary, quote="`"))
        lines.append("p: of the paired t test, adjusted for the number of methods (Holm).")
    blocks: list[Block] = [_primary(summary), *([Notes(lines)] if lines else []), _scores(summary)]
    blocks += [*map(Text, [*notes_on(summary.other_metrics), *_reach_note(summary)]), _seeds(summary)]
    measured = signatures(summary)
    blocks += [Text("How these were measured:"), Notes(measured)] if measured else []
    return Section("results", "Results", blocks)


def _primary(summary: Summary) -> Table:
    metric = summary.metrics.primary
    scale = interval_scale([row.difference.times(metric.factor) for row in summary.rows if row.difference is not None])
    headings: list[str | Cell] = ["Method", "Finished", metric.heading, difference_heading(metric)]
    counted = f"{metric.difference_unit} of {metric.label}" if metric.difference_unit else metric.label
    headings += [Cell("", plot=interval_axis(scale, counted)), "p (Holm)"] if scale is not None else []
    body: list[list[str | Cell]] = []
    for index, row in enumerate(summary.rows):
        found = row.difference
        cells: list[str | Cell] = [name(row.label), f"{row.count('finished')} of {len(row.outcomes)}"]
        cells.append(spread(row.scores.get(metric.name), metric.digits, metric.factor))
        cells.append(Cell("baseline") if index == 0 else difference(found, metric.digits, metric.factor))
        if scale is not None:
            plot = interval_plot(None if found is None else found.times(metric.factor), scale)
            cells += [Cell("", plot=plot), p_value(row.holm_p)]
        body.append(cells)
    caption = (
        f"Test {metric.label}, mean ± standard deviation over the seeds of finished runs; difference to the baseline"
    )
    return Table(caption, headings, body)


def _scores(summary: Summary) -> Table:
    others = summary.other_metrics
    headings: list[str | Cell] = ["Method", *(metric.heading for metric in others)]
    body: list[list[str | Cell]] = []
    for row in summary.rows:
        cells = [spread(row.scores.get(metric.name), metric.digits, metric.factor) for metric in others]
        body.append([name(row.label), *cells, _reach(row)])
    caption = "Other scores on the test part, and speed of convergence, mean ± standard deviation"
    return Table(caption, [*headings, "Epochs to target"], body)


def _reach(row: Row) -> str | Cell:
    if row.reach is None or row.reach.finished == 0:
        return NOTHING
    if row.reach.epochs is None:
        return "never"
    all_of_them = row.reach.reached == row.reach.finished
    count = "" if all_of_them else f" ({row.reach.reached} of {row.reach.finished} runs)"
    return row.reach.epochs.text(1) + count


def _reach_note(summary: Summary) -> list[str]:
    metric = summary.metrics.each_epoch
    reach = next((row.reach for row in summary.rows if row.reach is not None), None)
    if reach is None or summary.baseline is None:
        return []
    share = f"{100 * REACH:g} % of" if metric.higher_is_better else f"1 / {REACH:g} of"
    return [
        f"Epochs to target: the first epoch with a validation {metric.label} of "
        f"{metric.text(reach.target, metric.digits)}{'' if metric.higher_is_better else ' or less'}, which is {share} "
        f"the mean that `{summary.baseline.label}` ends with."
    ]


def _seeds(summary: Summary) -> Table:
    metric = summary.metrics.primary
    seeds = [] if summary.study.comparison is None else summary.study.comparison.seeds
    body: list[list[str | Cell]] = []
    for row in summary.rows:
        found = {each.seed: each for each in row.outcomes}
        cells: list[str | Cell] = [name(row.label)]
        for seed in seeds:
            each = found.get(seed)
            if each is None:
                cells.append(Cell("being tuned"))
            elif each.result is not None and each.result.test is not None:
                cells.append(f"{metric.factor * each.result.test[metric.name]:.{metric.digits}f}")
            else:
                cells.append(Cell(each.status))
        body.append(cells)
    unit = f", {metric.unit}" if metric.unit else ""
    # Only the number of a seed: with the word, ten seeds do not fit the page.
    return Table(f"Test {metric.label} of every run{unit}, by seed", ["Method", *map(str, seeds)], body)
