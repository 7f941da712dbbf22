"""The results: one row a method, its difference to the baseline with an interval, and every seed by itself."""

from __future__ import annotations

from ..analysis.remarks import difference_remark, origin_remarks, remarks
from ..analysis.summary import Row, Summary
from .blocks import Block, Cell, Notes, Section, Table, Text, name
from .figures import NOTHING, difference, p_value, spread
from .interval_plot import interval_axis, interval_plot, interval_scale


def results(summary: Summary) -> Section | None:
    """The section, None where nothing was compared."""
    if not summary.rows:
        return None
    lines = [*remarks(summary, quote="`"), *origin_remarks(summary)]
    if summary.comparisons:
        lines.insert(0, difference_remark(summary, quote="`"))
        lines.append("p: of the paired t test, adjusted for the number of methods (Holm).")
    blocks: list[Block] = [_accuracy(summary), *([Notes(lines)] if lines else []), _scores(summary)]
    blocks += [*map(Text, _reach_note(summary)), _seeds(summary)]
    return Section("results", "Results", blocks)


def _accuracy(summary: Summary) -> Table:
    scale = interval_scale([row.difference.times(100) for row in summary.rows if row.difference is not None])
    headings: list[str | Cell] = ["Method", "Finished", "Accuracy, %", "Difference, points [95 %]"]
    headings += [Cell("", plot=interval_axis(scale)), "p (Holm)"] if scale is not None else []
    body: list[list[str | Cell]] = []
    for index, row in enumerate(summary.rows):
        found = row.difference
        cells: list[str | Cell] = [name(row.label), f"{row.count('finished')} of {len(row.outcomes)}"]
        cells.append(spread(row.accuracy, 2, 100))
        cells.append(Cell("baseline") if index == 0 else difference(found, 2, 100))
        if scale is not None:
            plot = interval_plot(None if found is None else found.times(100), scale)
            cells += [Cell("", plot=plot), p_value(row.holm_p)]
        body.append(cells)
    caption = "Test accuracy, mean ± standard deviation over the seeds of finished runs; difference to the baseline"
    return Table(caption, headings, body)


def _scores(summary: Summary) -> Table:
    top5 = any(row.top5 is not None for row in summary.rows)
    headings: list[str | Cell] = ["Method", "NLL", "ECE, %", "Brier", *(["Top-5, %"] if top5 else [])]
    body: list[list[str | Cell]] = []
    for row in summary.rows:
        cells = [spread(row.nll, 3), spread(row.ece, 2, 100), spread(row.brier, 3)]
        cells += [spread(row.top5, 2, 100)] if top5 else []
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
    reach = next((row.reach for row in summary.rows if row.reach is not None), None)
    if reach is None or summary.baseline is None:
        return []
    return [
        f"Epochs to target: the first epoch with a validation accuracy of {100 * reach.target:.2f} %, which is 95 % of "
        f"the mean that `{summary.baseline.label}` ends with."
    ]


def _seeds(summary: Summary) -> Table:
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
                cells.append(f"{100 * each.result.test.accuracy:.2f}")
            else:
                cells.append(Cell(each.status))
        body.append(cells)
    return Table("Test accuracy of every run, %", ["Method", *(f"seed {seed}" for seed in seeds)], body)
