"""The end of a comparison: mean and standard deviation over the seeds, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .record import RunResult

if TYPE_CHECKING:
    from rich.table import Table

#: With fewer seeds than this, differences between methods are as likely noise.
ENOUGH_SEEDS = 5


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over the seeds; a single seed has no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one number a seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def text(self, digits: int, sign: str) -> str:
        """For a person: `96.1 ± 0.3`."""
        if self.std is None:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} {sign} {self.std:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One method. The metrics cover its finished runs only, and are None when every run diverged."""

    method: str
    runs: int
    diverged: int
    accuracy_percent: Spread | None
    ece_percent: Spread | None
    nll: Spread | None
    seconds: Spread


#: Field of `Row`, heading, digits after the point.
COLUMNS = (
    ("accuracy_percent", "accuracy %", 1),
    ("ece_percent", "ECE %", 2),
    ("nll", "NLL", 3),
    ("seconds", "seconds", 1),
)


def summarise(results: Sequence[RunResult]) -> list[Row]:
    """One row a method, in the order in which the methods first appear."""
    return [
        _row(method, [result for result in results if result.method == method])
        for method in dict.fromkeys(result.method for result in results)
    ]


def to_json(rows: Sequence[Row], results: Sequence[RunResult]) -> dict[str, Any]:
    """The numbers of the table, unrounded, with the runs behind them."""
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "runs": [
            {
                "method": result.method,
                "seed": result.seed,
                "status": result.status,
                "metrics": None if result.metrics is None else dataclasses.asdict(result.metrics),
                "seconds": result.seconds,
            }
            for result in results
        ],
        "recipe": results[0].recipe,
        "data_checksum": results[0].data_checksum,
    }


def render(rows: Sequence[Row], title: str, sign: str = "±") -> Table:
    """The rich table. No row is marked as the winner: that takes more than a mean. Diverged runs are named."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("method", overflow="fold")
    for _, heading, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    some_diverged = any(row.diverged for row in rows)
    if some_diverged:
        table.add_column("diverged", justify="right", no_wrap=True)
    for row in rows:
        spreads = [(getattr(row, field), digits) for field, _, digits in COLUMNS]
        cells = ["-" if spread is None else spread.text(digits, sign) for spread, digits in spreads]
        table.add_row(Text(row.method), *cells, *([f"{row.diverged} of {row.runs}"] if some_diverged else []))
    return table


def note(seeds: int) -> str | None:
    """What to keep in mind when reading a table over so few seeds."""
    if seeds >= ENOUGH_SEEDS:
        return None
    count = {1: "One seed is", 2: "Two seeds are"}.get(seeds, f"{seeds} seeds are")
    return f"{count} too few to tell the methods apart: use --seeds {ENOUGH_SEEDS} or more before you draw conclusions."


def _row(method: str, results: Sequence[RunResult]) -> Row:
    metrics = [result.metrics for result in results if result.metrics is not None]
    return Row(
        method=method,
        runs=len(results),
        diverged=len(results) - len(metrics),
        accuracy_percent=Spread.of([100 * one.accuracy for one in metrics]) if metrics else None,
        ece_percent=Spread.of([100 * one.ece for one in metrics]) if metrics else None,
        nll=Spread.of([one.nll for one in metrics]) if metrics else None,
        seconds=Spread.of([result.seconds for result in results]),
    )
