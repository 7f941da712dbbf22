"""`--dry-run` of train, compare and ablate: print sizes, the runs, their number and an estimate of the time."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..experiments.runs.job import Job
    from ..experiments.studies.dry_run import Forecast, Line


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the sizes of data and model, the runs and an estimate of the time, and stop. Nothing is written.",
    )


def show(groups: Callable[[], Mapping[str, Sequence[Job]]], on_cluster: bool = False) -> int:
    """Print the plan for the jobs that `groups` returns, by label. The runs are listed before anything is timed."""
    from .progress import show_progress

    with show_progress(None):
        from ..experiments.studies.dry_run import forecast, plan_of

        plan = plan_of(groups())
    print("\n".join(plan.data))
    _print_runs(plan.lines)
    if not any(line.left for line in plan.lines):
        return 0
    with show_progress(None) as bar:
        bar.plan(len(plan.lines))
        found = forecast(
            plan, on_cluster, lambda label, done: bar.progress(f"timing {label}" if label else "done", done), bar.say
        )
    _print_times(found)
    return 0


def _print_runs(lines: Sequence[Line]) -> None:
    _print_table(
        ("runs", "finished", "epochs each"),
        {line.label: (str(line.runs), str(line.finished), str(line.epochs)) for line in lines},
    )
    count = sum(line.runs for line in lines)
    text = f"{count} run{'s' * (count != 1)}, {sum(line.left for line in lines)} of them to train."
    if again := sum(line.scored_again for line in lines):
        text += f" {again} finished runs are only scored again, which is not in the estimate."
    # What follows takes a while, and a file would not show this line before its end.
    print(text, flush=True)


def _print_times(found: Forecast) -> None:
    from ..experiments.runs.timed_steps import LIMIT, SECONDS, STEPS

    left = [line for line in found.lines if line.left]
    if found.model:
        print(found.model)
    _print_table(("time each",), {line.label: (_time(line),) for line in left})
    for text in _sentences(found, left, f"up to {STEPS} steps or {SECONDS:g} second", f"{LIMIT:g} s"):
        print(text)


def _time(line: Line) -> str:
    return "not timed" if line.seconds is None else duration(line.seconds) + " *" * line.from_records


def _print_table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for label, cells in rows.items():
        # Text, since a str would lose what a method has in brackets.
        table.add_row(Text(label), *cells)
    Console(highlight=False).print(table)


def _sentences(found: Forecast, left: Sequence[Line], timed: str, limit: str) -> list[str]:
    sentences = []
    slow = sum(line.seconds is None for line in left)
    if found.on_cluster:
        sentences.append("The time depends on the cluster; the times above are those of this machine.")
    elif found.seconds is not None:
        at_once = f", {found.workers} runs at once" if found.workers > 1 else ""
        sentences.append(f"Estimated time: about {duration(found.seconds)}{at_once}.")
    if slow:
        sentences.append(f"Not timed: {slow} of {len(left)}, since a few steps take longer than {limit} here.")
    if basis := _basis(found, left, timed):
        sentences.append(basis)
    return sentences


def _basis(found: Forecast, left: Sequence[Line], timed: str) -> str:
    """How the times were estimated."""
    told = [line for line in left if line.seconds is not None]
    parts = []
    if any(not line.from_records for line in told):
        without = ", without compiling," if found.uncompiled else ","
        parts.append(
            f"Measured on this machine just now{without} {timed} of each method, and scaled to the whole run"
            + (f"; {' and '.join(found.left_out)} of the final test not included." if found.left_out else ".")
        )
    if any(line.from_records for line in told):
        parts.append("* From finished runs in this folder, made on such a machine.")
    return " ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in words, with two digits that mean something.

    >>> duration(0.34), duration(41), duration(150), duration(3 * 3600), duration(60 * 3600)
    ('0.3 s', '41 s', '2.5 min', '3.0 h', '2.5 days')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.1f} min" if minutes < 9.95 else f"{math.ceil(minutes)} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
