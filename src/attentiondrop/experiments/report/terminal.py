"""The result of a study on a terminal: tables of at most 100 columns, with notes below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.intervals import Difference, Spread
from ..analysis.remarks import MARK, ablation_remark, difference_remark, origin_remarks, remarks
from ..analysis.summary import GridSummary, Row, Summary
from ..tasks.metrics import Metric

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: The width in characters that a terminal needs for all columns.
WIDE = 100


def show(summary: Summary, console: Console) -> None:
    """Print the comparison and the ablations, with characters that the console can print."""
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    if summary.rows:
        console.print(render(summary, sign, console.width))
    for grid in summary.grids:
        console.print(render_grid(summary, grid, sign))
    for line in notes(summary):
        console.print(line, markup=False, soft_wrap=True)


def render(summary: Summary, sign: str = "±", width: int = 100) -> Table:
    """The rich table of a comparison. Runs that have not finished are counted, not hidden.

    If `width` is too small for all columns, the column for speed is left out.
    """
    table = _table(f"{title(summary)}: mean {sign} standard deviation over the seeds", "method")
    primary, *others = [metric for metric in summary.metrics.all if metric.brief]
    columns = [primary.column, "difference", *(metric.column for metric in others)]
    columns += [] if width < WIDE else [f"{summary.sample_unit}/s"]
    columns += ["failed"] if any(row.count("finished") < len(row.outcomes) for row in summary.rows) else []
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    from rich.text import Text

    room = _room([row.difference for row in summary.rows])
    for index, row in enumerate(summary.rows):
        found = "baseline" + room if index == 0 else _difference(row.difference, primary, room)
        cells = _cells(row, summary, found, sign)
        table.add_row(Text(row.label), *(cells[heading] for heading in columns))
    return table


def render_grid(summary: Summary, grid: GridSummary, sign: str = "±") -> Table:
    """The rich table of one ablation, on the validation part."""
    from rich.text import Text

    baseline = summary.grid_baseline
    table = _table(f"{grid.grid.name}, validation part: mean {sign} std. dev.", "method")
    primary = summary.metrics.primary
    for heading in (primary.column, "difference", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    room = _room([cell.difference for cell in grid.cells])
    for cell in ((baseline,) if baseline else ()) + grid.cells:
        failed = sum(each.status != "finished" for each in cell.outcomes)
        table.add_row(
            Text(cell.method),
            _spread(cell.score, primary, sign),
            "baseline" + room if cell is baseline else _difference(cell.difference, primary, room),
            f"{failed} of {len(cell.outcomes)}" if failed else "0",
        )
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
    table.add_column(first, overflow="fold", min_width=16)
    return table


def _cells(row: Row, summary: Summary, difference: str, sign: str) -> dict[str, str]:
    failed = sum(each.status != "finished" for each in row.outcomes)
    shown = {each.column: _spread(row.scores.get(each.name), each, sign) for each in summary.metrics.all}
    return shown | {
        "difference": difference,
        f"{summary.sample_unit}/s": "-" if row.throughput is None else f"{row.throughput.mean:.0f}",
        "failed": f"{failed} of {len(row.outcomes)}" if failed else "0",
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
