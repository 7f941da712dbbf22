"""The result of a study on a terminal: tables that fit its width, with notes below."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.intervals import Difference, Spread
from ..analysis.remarks import MARK, ablation_remark, difference_remark, origin_remarks, remarks
from ..analysis.summary import GridSummary, Row, Summary
from ..tasks.metrics import Metric
from .whole_tables import narrowest, print_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: In characters.
_LONG_NAME = 20


def show(summary: Summary, console: Console) -> None:
    """Print the comparison and the ablations, with characters that the console can print."""
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    if summary.rows:
        without = _without(summary, console, sign)
        print_whole(render(summary, sign, without), console)
        if without:
            line = f"This terminal is too narrow for: {', '.join(without)}. The report has all columns."
            console.print(line, markup=False, soft_wrap=True)
    for grid in summary.grids:
        print_whole(render_grid(summary, grid, sign), console)
    for line in notes(summary):
        console.print(line, markup=False, soft_wrap=True)


def _without(summary: Summary, console: Console, sign: str) -> list[str]:
    """The columns that are left out so that the others fit: the speed first, then the last metrics."""
    optional = [_speed(summary), *reversed([metric.column for metric in summary.metrics.all if metric.brief][1:])]
    for count in range(len(optional)):
        if narrowest(render(summary, sign, optional[:count]), console) <= console.width:
            return optional[:count]
    return optional


def _speed(summary: Summary) -> str:
    """The heading of the column for the speed."""
    return f"{summary.sample_unit}/s"


def render(summary: Summary, sign: str = "±", without: Sequence[str] = ()) -> Table:
    """The rich table of a comparison. Runs that have not finished are counted, not hidden."""
    table = _table(f"{title(summary)}: mean {sign} standard deviation over the seeds", "method")
    primary, *others = [metric for metric in summary.metrics.all if metric.brief]
    columns = [primary.column, "difference", *(metric.column for metric in others), _speed(summary)]
    columns = [heading for heading in columns if heading not in without]
    columns += ["unfinished"] if any(row.count("finished") < len(row.outcomes) for row in summary.rows) else []
    room = _room([row.difference for row in summary.rows])
    rows = []
    for index, row in enumerate(summary.rows):
        found = "baseline" + room if index == 0 else _difference(row.difference, primary, room)
        cells = _cells(row, summary, found, sign)
        rows.append((row.label, *(cells[heading] for heading in columns)))
    _fill(table, columns, rows)
    return table


def render_grid(summary: Summary, grid: GridSummary, sign: str = "±") -> Table:
    """The rich table of one ablation, on the validation part."""
    baseline = summary.grid_baseline
    table = _table(f"{grid.grid.name}, validation part: mean {sign} std. dev.", "method")
    primary = summary.metrics.primary
    room = _room([cell.difference for cell in grid.cells])
    rows = []
    for cell in ((baseline,) if baseline else ()) + grid.cells:
        unfinished = sum(each.status != "finished" for each in cell.outcomes)
        rows.append(
            (
                cell.method,
                _spread(cell.score, primary, sign),
                "baseline" + room if cell is baseline else _difference(cell.difference, primary, room),
                f"{unfinished} of {len(cell.outcomes)}" if unfinished else "0",
            )
        )
    _fill(table, [primary.column, "difference", "unfinished"], rows)
    return table


def notes(summary: Summary) -> list[str]:
    """The lines under the table."""
    lines = []
    if any(row.difference is not None and row.difference.interval is not None for row in summary.rows):
        lines.append(difference_remark(summary))
    if summary.grid_baseline is not None:
        lines.append(ablation_remark(summary))
    return [*lines, *remarks(summary), *origin_remarks(summary)]


def title(summary: Summary) -> str:
    """What was trained, in a few words: `digits demo, vit_digits, 30 epochs`."""
    recipe = summary.plan.recipe
    names = [str(recipe[key]) for key in ("name", "size") if recipe.get(key)]
    model = recipe.get("model", {}).get("name")
    epochs = recipe.get("training", {}).get("epochs")
    parts = [" ".join(names), model, None if epochs is None else f"{epochs} epoch{'s' * (epochs != 1)}"]
    return ", ".join(str(part) for part in parts if part) or "comparison"


def _table(heading: str, first: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(heading),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column(first, overflow="fold")
    return table


def _fill(table: Table, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Add columns of numbers, and the rows: each has a name and its numbers."""
    from rich.text import Text

    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, *numbers in rows:
        lines = _in_lines(name)
        table.columns[0].min_width = max(table.columns[0].min_width or 0, *map(len, lines))
        table.add_row(Text("\n".join(lines)), *numbers)


def _in_lines(name: str) -> list[str]:
    """A long name in several lines, which end before a plus or after a comma: never in the middle of a number.

    >>> _in_lines("blur(sigma_max=0.5)+hard(p=0.3,k=10,fill=-inf)")
    ['blur(sigma_max=0.5)', '+hard(p=0.3,k=10,', 'fill=-inf)']
    """
    lines = [""]
    for piece in re.findall(r"\+?[^+,]*,?", name):
        lines[-1:] = [lines[-1] + piece] if len(lines[-1] + piece) <= _LONG_NAME else [lines[-1], piece]
    return [line for line in lines if line]


def _cells(row: Row, summary: Summary, difference: str, sign: str) -> dict[str, str]:
    unfinished = sum(each.status != "finished" for each in row.outcomes)
    shown = {each.column: _spread(row.scores.get(each.name), each, sign) for each in summary.metrics.all}
    return shown | {
        "difference": difference,
        _speed(summary): "-" if row.throughput is None else f"{row.throughput.mean:.0f}",
        "unfinished": f"{unfinished} of {len(row.outcomes)}" if unfinished else "0",
    }


def _spread(spread: Spread | None, metric: Metric, sign: str) -> str:
    return "-" if spread is None else spread.times(metric.factor).text(metric.brief_digits, sign)


def _room(differences: Sequence[Difference | None]) -> str:
    """The blanks for rows without a mark, so that numbers stay aligned."""
    return " " * (1 + len(MARK)) if any(each is not None and each.marked for each in differences) else ""


def _difference(difference: Difference | None, metric: Metric, room: str) -> str:
    if difference is None:
        return f"-{room}"
    return difference.times(metric.factor).text(metric.brief_digits) + (f" {MARK}" if difference.marked else room)
