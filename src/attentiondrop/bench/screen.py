"""Print the tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .records import FAILED, Outcome
from .report import base_line


def show(sections: Mapping[str, Sequence[Outcome]]) -> None:
    """Print the tables, each with the reasons of the rows that have no timing."""
    # A file has no width, so the table gets a fixed one.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for heading, outcomes in sections.items():
        console.print(render(heading, outcomes))
        for line in (base_line(outcomes), *(outcome.remark() for outcome in outcomes)):
            if line:
                console.print(line, markup=False, soft_wrap=True)
        console.print()


def render(title: str, outcomes: Sequence[Outcome]) -> Table:
    """One table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for index, heading in enumerate(outcomes[0].headings):
        table.add_column(heading, justify="left" if index < 2 else "right", no_wrap=index > 0, overflow="fold")
    for outcome in outcomes:
        style = "bold red" if outcome.status == FAILED else ""
        table.add_row(*(Text(cell) for cell in outcome.cells()), style=style)
    return table
