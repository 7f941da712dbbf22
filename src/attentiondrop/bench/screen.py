"""What a person sees: a bar while it runs, tables when it is done."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from .records import FAILED, Outcome
from .report import base_line


class Bar:
    """A `Listener`, on standard error, so that standard output holds nothing but results.

    In a log, where a bar cannot move, the lines tell how far things are and the bar is printed once at the end.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("loading torch", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, soft_wrap=True)

    def plan(self, total: int) -> None:
        """Tell the bar how long the way is."""
        self._bar.update(self._task, total=total)

    def progress(self, label: str, done: float) -> None:
        """Tell the bar how far things are."""
        self._bar.update(self._task, completed=done, description=label)


def show(sections: Mapping[str, Sequence[Outcome]]) -> None:
    """Print the tables, each with the reasons of the rows that have no timing."""
    # A file has no width: the table gets what it needs.
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
