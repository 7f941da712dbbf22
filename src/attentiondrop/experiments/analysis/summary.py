"""A study in numbers: a row per method, the trials of tuning, the points of ablations. Table and report show these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..studies.plan import Ablation, Comparison, Entry, Grid, Study
from ..studies.step_costs import StepCost
from ..tasks.metrics import Metric, Metrics
from ..tasks.registry import task_of
from .improvement import Improvement
from .intervals import Difference, Spread
from .outcomes import Outcome


@dataclass(frozen=True)
class Reach:
    """How fast a method converges: the first epoch whose primary validation metric is at least as good as `target`.

    All methods have the same target.
    """

    target: float
    #: Over the runs that reached it; None if none did.
    epochs: Spread | None
    #: How many of the finished runs reached it.
    reached: int
    finished: int


@dataclass(frozen=True)
class Row:
    """One method. Its numbers cover only finished runs, on the test part; they are None if there are no such runs."""

    entry: Entry
    outcomes: tuple[Outcome, ...]
    #: The metric that differences are about.
    primary: Metric
    #: Name of the metric -> scores. Metrics that no finished run has are left out.
    scores: dict[str, Spread] = field(default_factory=dict)
    #: Epsilon -> accuracy under attack; empty if not measured.
    robust: dict[float, Spread] = field(default_factory=dict)
    #: Training samples per second; MiB of the accelerator; seconds of a whole run.
    throughput: Spread | None = None
    peak_memory_mib: Spread | None = None
    seconds: Spread | None = None
    #: Ratio to the baseline run with the same seed.
    throughput_ratio: Spread | None = None
    memory_ratio: Spread | None = None
    #: Name of the metric -> difference to the baseline; empty in the row of the baseline.
    differences: dict[str, Difference] = field(default_factory=dict)
    reach: Reach | None = None
    #: How often it is better than the baseline; None in the row of the baseline.
    improvement: Improvement | None = None
    #: Steps times the time of a step that was measured alone.
    gpu_seconds: Spread | None = None
    #: Of a step, measured alone.
    cost: StepCost | None = None

    @property
    def label(self) -> str:
        """The method with all fields or, while it is being tuned, its name."""
        return self.entry.method or f"{self.entry.name} (being tuned)"

    def count(self, status: str) -> int:
        """How many of its runs have this status."""
        return sum(each.status == status for each in self.outcomes)

    @property
    def difference(self) -> Difference | None:
        """The difference of the primary metric."""
        return self.differences.get(self.primary.name)

    @property
    def holm_p(self) -> float | None:
        """The p value of that difference, adjusted for the number of methods."""
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
    #: The primary metric.
    score: Spread | None
    difference: Difference | None


@dataclass(frozen=True)
class GridSummary:
    """One ablation with its cells, in the order of the grid."""

    grid: Grid
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class LeftOut:
    """A run in the folder that the numbers do not use."""

    #: Its path below the folder of the study, such as "runs/none/seed0".
    place: str
    #: How it differs from the recipe of the study; empty if it has the same recipe but is not part of the study.
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """All numbers that table and report show. `interval` is the kind of all its intervals."""

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
        """The row that differences are computed to: the first one."""
        return self.rows[0] if self.rows else None

    @property
    def plan(self) -> Comparison | Ablation:
        """The plan of the study."""
        return self.study.plan

    @property
    def other_metrics(self) -> tuple[Metric, ...]:
        """The metrics beside the primary one that a run has. As long as no run has any, those that are compared.

        Some do not exist for all data, such as top-5 with five classes or fewer, and some not in older runs.
        """
        found = {name for row in self.rows for name in row.scores}
        return tuple(each for each in self.metrics.others if (each.name in found if found else each.compared))

    @property
    def sample_unit(self) -> str:
        """What the throughput counts."""
        return task_of(self.study.plan.recipe).sample_unit

    @property
    def comparisons(self) -> int:
        """How many differences of the primary metric have an interval."""
        return sum(row.difference is not None and row.difference.interval is not None for row in self.rows)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every run of the study, once, in this order: final runs, tuning, ablations."""
        cells = ((self.grid_baseline,) if self.grid_baseline else ()) + tuple(
            cell for grid in self.grids for cell in grid.cells
        )
        every = [each for row in self.rows for each in row.outcomes]
        every += [trial.outcome for tuned in self.tuning for trial in tuned.trials]
        every += [each for cell in cells for each in cell.outcomes]
        found: dict[tuple[str, str, int], Outcome] = {}
        for each in every:  # the first counts: an ablation of an older version may share a final run, without its test
            found.setdefault((each.part, each.method, each.seed), each)
        return tuple(found.values())

    @property
    def seeds(self) -> int:
        """The largest number of seeds that a difference is computed from; 0 if there is no difference."""
        return max((len(row.difference.seeds) for row in self.rows if row.difference), default=0)
