"""Print tables of which nothing is lost: a number that lost its end is a wrong number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_whole(table: Table, console: Console) -> None:
    """Print all of a table, and wider than the terminal if need be. Its title is printed above it, in full."""
    heading, table.title = table.title, None
    console.print(heading, soft_wrap=True)
    needed = narrowest(table, console)
    if needed <= console.width:
        console.print(table)
    else:
        # A console cuts what is wider than itself, unless it is text.
        for line in console.render_lines(table, console.options.update(max_width=needed, width=needed)):
            console.print("".join(part.text for part in line), markup=False, highlight=False, soft_wrap=True)


def narrowest(table: Table, console: Console) -> int:
    """The width that a table needs at least. Columns that may not wrap become as wide as their longest cell."""
    from rich.measure import Measurement

    endless = console.options.update(max_width=10_000)
    for column in table.columns:
        if column.no_wrap:
            cells = (column.header, *column.cells)
            column.min_width = max(Measurement.get(console, endless, cell).maximum for cell in cells)
    return Measurement.get(console, endless, table).minimum
