"""The progress of long commands, on standard error: standard output has only results.

A terminal gets a bar that moves. A log, where a bar cannot move, gets a line for every twentieth of the whole, and
every ten minutes.
"""

from __future__ import annotations

import time
from datetime import timedelta
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

#: Without a unit, the steps between two lines of a log: a tenth of all.
_TENTHS = 10
#: With a unit, the lines of a log for the whole, and the seconds after which there is another line if a unit is done.
_LINES, _SILENT = 20, 600.0


def show_progress(unit: str | None) -> ProgressBar | ProgressLines:
    """A bar if standard error is a terminal, and lines otherwise. Both are a `Listener`.

    With a `unit`, such as "epochs", steps of equal length are counted; without one, a percentage is shown.
    """
    console = Console(stderr=True, highlight=False)
    return ProgressBar(unit, console) if console.is_terminal else ProgressLines(unit, console)


class ProgressBar:
    """A bar with elapsed and remaining time, and lines above it."""

    def __init__(self, unit: str | None, console: Console) -> None:
        share = (TaskProgressColumn(), TimeElapsedColumn())
        counted = (
            MofNCompleteColumn(),
            TextColumn(unit or ""),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._console = console
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


class ProgressLines:
    """A plain line now and then: how many units of all are done, how long it took, what runs, how long the rest takes.

    With a unit, a line for every twentieth of the whole, or after ten minutes. Without one, for every tenth.
    """

    def __init__(self, unit: str | None, console: Console) -> None:
        self._unit, self._console = unit, console
        self._start = time.monotonic()
        self._total: int | None = None
        #: Units that lines have reported.
        self._shown = 0
        self._last = self._start
        #: When the first line of a plan was printed, and the units that were done then: what came before is loading.
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, line: str) -> None:
        """Print the line."""
        self._console.print(line, markup=False, soft_wrap=True)

    def plan(self, total: int) -> None:
        """Set the total."""
        self._total, self._first, self._shown = total, None, 0
        if self._unit is not None:
            self.say(f"{total} {self._unit} to do" if total else "nothing left to run")

    def progress(self, label: str, done: float) -> None:
        """Print a line if enough more is done."""
        if not self._total:
            return
        steps = int(done) if self._unit is not None else int(_TENTHS * done / self._total)
        now = time.monotonic()
        if steps <= self._shown or not (self._unit is None or self._is_due(steps, now)):
            return
        self._shown, self._last = steps, now
        took = _clock(now - self._start)
        if self._unit is None:
            self.say(f"{100 * steps // _TENTHS} % after {took}: {label}")
            return
        left = ""
        if self._first is None:
            self._first = now, steps
        else:
            began, before = self._first
            left = f", {_clock((now - began) / (steps - before) * (self._total - steps))} left"
        self.say(f"{steps}/{self._total} {self._unit} after {took}{left}: {label}")

    def _is_due(self, steps: int, now: float) -> bool:
        """Whether there is a line after this many units. The first one tells that it works."""
        total = self._total or 1
        return (
            self._shown == 0
            or steps >= total
            or steps * _LINES // total > self._shown * _LINES // total
            or now - self._last >= _SILENT
        )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
