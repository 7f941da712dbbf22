"""The progress bar of long commands, on standard error: standard output has only results."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


class ProgressBar:
    """A `Listener`: a bar with elapsed time, and lines above it.

    With a `unit`, such as "epochs", it counts steps of equal length and shows the remaining time; without one, it shows
    a percentage. In a log, where a bar cannot move, the lines show the progress and the bar is printed once at the end.
    """

    def __init__(self, unit: str | None) -> None:
        share = (TaskProgressColumn(), TimeElapsedColumn())
        counted = (
            MofNCompleteColumn(),
            TextColumn(unit or ""),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            *(share if unit is None else counted),
            console=self._console,
        )
        self._task = self._bar.add_task("loading torch", total=None)

    def __enter__(self) -> ProgressBar:
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
        """Set the total."""
        self._bar.update(self._task, total=total, description="nothing left to run" if total == 0 else "starting")

    def progress(self, label: str, done: float) -> None:
        """Set how much is done."""
        self._bar.update(self._task, completed=done, description=label)
