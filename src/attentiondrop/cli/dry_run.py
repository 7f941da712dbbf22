"""`--dry-run` of train, compare and ablate: print the runs, their number and an estimate of the time."""

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
        help="Print the runs, their number and an estimate of the time, and stop. Nothing is written.",
    )


def show(groups: Callable[[], Mapping[str, Sequence[Job]]], on_cluster: bool = False) -> int:
    """Print the plan for the jobs that `groups` returns, by label."""
    from .progress import show_progress

    with show_progress(None) as bar:
        from ..experiments.studies.dry_run import forecast

        planned = groups()
        bar.plan(len(planned))
        found = forecast(
            planned, on_cluster, lambda label, done: bar.progress(f"timing {label}" if label else "done", done)
        )
    _print(found)
    return 0


def _print(found: Forecast) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ..experiments.runs.timed_steps import SECONDS, STEPS

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "runs", "finished", "epochs each", "time each"):
        table.add_column(column, justify="right" if column else "left", no_wrap=bool(column))
    for line in found.lines:
        time = "" if line.seconds is None else duration(line.seconds) + " *" * line.from_records
        table.add_row(line.label, str(line.runs), str(line.finished), str(line.epochs), time)
    console = Console(highlight=False)
    console.print(table)
    for text in _sentences(found, f"up to {STEPS} steps or {SECONDS:g} second"):
        console.print(text, markup=False, soft_wrap=True)


def _sentences(found: Forecast, timed: str) -> list[str]:
    total, left = sum(line.runs for line in found.lines), found.runs_left
    sentences = [f"{total} runs, {left} of them to train."]
    if again := sum(line.scored_again for line in found.lines):
        sentences[0] += f" {again} finished runs are only scored again, which is not in the estimate."
    if left == 0:
        return sentences
    if found.seconds is None:
        sentences.append("The time depends on the cluster; the times above are those of this machine.")
    else:
        at_once = f", {found.workers} runs at once" if found.workers > 1 else ""
        sentences.append(f"Estimated time: about {duration(found.seconds)}{at_once}.")
    sentences.append(_basis(found.lines, timed))
    return sentences


def _basis(lines: Sequence[Line], timed: str) -> str:
    """How the times were estimated."""
    told = [line for line in lines if line.seconds is not None]
    parts = []
    if any(not line.from_records for line in told):
        parts.append(
            f"Measured on this machine just now, {timed} of each method, and scaled to the whole run; attacks and "
            "beam search of the final test are not in it."
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
