"""A study in numbers: one row a method, what tuning tried, what the ablations found. Table and report show this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..studies.plan import Ablation, Comparison, Entry, Grid, Study
from ..tasks.metrics import Metric, Metrics
from .intervals import Difference, Spread
from .outcomes import Outcome


@dataclass(frozen=True)
class Reach:
    """How fast a method converges: the first epoch at which the primary metric on the validation part is at least as
    good as a common `target`.
    """

    target: float
    #: Over the runs that reached it; None if none did.
    epochs: Spread | None
    #: How many of the finished runs reached it.
    reached: int
    finished: int


@dataclass(frozen=True)
class Row:
    """One method. Numbers cover its finished runs only, on the test part, and are None when there are none."""

    entry: Entry
    outcomes: tuple[Outcome, ...]
    #: The metric that differences are about.
    primary: Metric
    #: By the name of the metric; metrics that no finished run has are left out.
    scores: dict[str, Spread] = field(default_factory=dict)
    #: Accuracy under attack by epsilon; empty if not measured.
    robust: dict[float, Spread] = field(default_factory=dict)
    #: Training samples a second; MiB of the accelerator; seconds of a run with everything in it.
    throughput: Spread | None = None
    peak_memory_mib: Spread | None = None
    seconds: Spread | None = None
    #: To the baseline, within a seed.
    throughput_ratio: Spread | None = None
    memory_ratio: Spread | None = None
    #: By the name of the metric; empty in the baseline's own row.
    differences: dict[str, Difference] = field(default_factory=dict)
    reach: Reach | None = None

    @property
    def label(self) -> str:
        """The method in full, or what it was asked for as long as tuning has not settled it."""
        return self.entry.method or f"{self.entry.name} (being tuned)"

    def count(self, status: str) -> int:
        """How many of its runs have this status."""
        return sum(each.status == status for each in self.outcomes)

    @property
    def difference(self) -> Difference | None:
        """Of the primary metric."""
        return self.differences.get(self.primary.name)

    @property
    def holm_p(self) -> float | None:
        """P value of that difference, adjusted for the number of methods."""
        return None if self.difference is None else self.difference.holm_p


@dataclass(frozen=True)
class Trial:
    """One setting that tuning tried."""

    outcome: Outcome
    validation: dict[str, float] | None
    picked: bool


@dataclass(frozen=True)
class Tuned:
    """What tuning tried for one method."""

    entry: Entry
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Cell:
    """One point of an ablation, on the validation part."""

    method: str
    values: tuple[Any, ...]
    outcomes: tuple[Outcome, ...]
    #: Of the primary metric.
    score: Spread | None
    difference: Difference | None


@dataclass(frozen=True)
class GridSummary:
    """One ablation with its cells, in the order of the grid."""

    grid: Grid
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class LeftOut:
    """A run in the folder that no number rests on."""

    #: Below the folder of the study, such as "runs/none/seed0".
    place: str
    #: Where it differs from the recipe of the study; empty if the study has the recipe but does not name the run.
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """Everything that table and report show. `interval` is the kind of every interval in it."""

    study: Study
    interval: str
    metrics: Metrics
    rows: tuple[Row, ...] = ()
    tuning: tuple[Tuned, ...] = ()
    grids: tuple[GridSummary, ...] = ()
    #: The baseline of the ablation, on the validation part.
    grid_baseline: Cell | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def baseline(self) -> Row | None:
        """What differences are to."""
        return self.rows[0] if self.rows else None

    @property
    def plan(self) -> Comparison | Ablation:
        """What the folder is about."""
        return self.study.plan

    @property
    def comparisons(self) -> int:
        """How many differences of the primary metric have an interval."""
        return sum(row.difference is not None and row.difference.interval is not None for row in self.rows)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every run the study asks for, once, in order: final ones, tuning, ablations."""
        cells = ((self.grid_baseline,) if self.grid_baseline else ()) + tuple(
            cell for grid in self.grids for cell in grid.cells
        )
        every = [each for row in self.rows for each in row.outcomes]
        every += [trial.outcome for tuned in self.tuning for trial in tuned.trials]
        every += [each for cell in cells for each in cell.outcomes]
        found: dict[tuple[str, str, int], Outcome] = {}
        for each in every:  # the first one counts: a final run, with its test scores, before an ablation that shares it
            found.setdefault((each.part, each.method, each.seed), each)
        return tuple(found.values())

    @property
    def seeds(self) -> int:
        """How many seeds the differences rest on, at the most; 0 where there is no difference."""
        return max((len(row.difference.seeds) for row in self.rows if row.difference), default=0)
