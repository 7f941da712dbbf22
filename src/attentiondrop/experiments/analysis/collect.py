"""From the folder of a study to its numbers: reads every run once, pairs the seeds, sums up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...validation import one_of
from ..files.whole_files import DamagedRecordError
from ..runs.kinds import TUNING
from ..runs.store import Result
from ..studies.plan import Ablation, Comparison, Entry, Grid, Study
from .intervals import KINDS, Difference, Spread, corrected, paired_difference
from .left_out import left_out
from .outcomes import Outcome, by_seed, outcome
from .summary import Cell, GridSummary, Reach, Row, Summary, Trial, Tuned

#: A run has converged when its validation accuracy reaches this share of the baseline's final mean.
REACH = 0.95


def summarise(study: Study, interval: str = "t") -> Summary:
    """Read every run of a study and sum them up. `interval` is "t" or "bootstrap", see `statistics`."""
    one_of("interval", interval, KINDS)
    rows: tuple[Row, ...] = ()
    tuning: tuple[Tuned, ...] = ()
    grids: tuple[GridSummary, ...] = ()
    baseline: Cell | None = None
    if study.comparison is not None:
        rows = _rows(study, study.comparison, interval)
        tuning = tuple(_tuned(study, study.comparison, entry) for entry in study.comparison.methods if entry.trials)
    if study.ablation is not None:
        baseline = _cell(study, study.ablation, study.ablation.baseline, (), None, interval)
        grids = _corrected([_grid(study, study.ablation, grid, baseline, interval) for grid in study.ablation.grids])
    found = Summary(study, interval, rows, tuning, grids, baseline)
    return dataclasses.replace(found, left_out=left_out(found))


def _rows(study: Study, comparison: Comparison, interval: str) -> tuple[Row, ...]:
    runs = [
        tuple(outcome(study, comparison, entry.method, seed) for seed in comparison.seeds) if entry.method else ()
        for entry in comparison.methods
    ]
    if not runs:
        return ()
    target = _target(runs[0])
    differences = [
        {} if index == 0 else _differences(outcomes, runs[0], interval) for index, outcomes in enumerate(runs)
    ]
    for family in _FAMILIES:
        _correct(differences, family)
    return tuple(
        Row(
            entry,
            outcomes,
            **{name: _spread(outcomes, value) for name, value in _METRICS.items()},
            robust=_robust(outcomes),
            throughput_ratio=_ratio(outcomes, runs[0], _METRICS["throughput"]),
            memory_ratio=_ratio(outcomes, runs[0], _METRICS["peak_memory_mib"]),
            differences=found,
            reach=None if target is None else _reach(outcomes, target),
        )
        for entry, outcomes, found in zip(comparison.methods, runs, differences, strict=True)
    )


def _test(name: str) -> Callable[[Result], float | None]:
    def value(result: Result) -> float | None:
        return None if result.test is None else getattr(result.test, name)

    return value


_SCORES = ("accuracy", "nll", "ece", "brier")
#: What is looked at together, in one table: Holm's correction is for all of it.
_FAMILIES = (("accuracy",), ("nll", "ece", "brier"))
_METRICS: dict[str, Callable[[Result], float | None]] = {name: _test(name) for name in (*_SCORES, "top5")} | {
    "throughput": lambda result: result.throughput,
    "peak_memory_mib": lambda result: result.peak_memory_mib,
    "seconds": lambda result: result.seconds,
}


def _spread(outcomes: Sequence[Outcome], value: Callable[[Result], float | None]) -> Spread | None:
    numbers = list(by_seed(outcomes, value).values())
    return Spread.of(numbers) if numbers else None


def _differences(outcomes: Sequence[Outcome], baseline: Sequence[Outcome], interval: str) -> dict[str, Difference]:
    found = {
        name: paired_difference(by_seed(outcomes, _METRICS[name]), by_seed(baseline, _METRICS[name]), interval)
        for name in _SCORES
    }
    return {name: difference for name, difference in found.items() if difference is not None}


def _correct(rows: Sequence[dict[str, Difference]], family: Sequence[str]) -> None:
    places = [(row, name) for row in rows for name in family if name in row]
    for (row, name), found in zip(places, corrected([row[name] for row, name in places]), strict=True):
        if found is not None:
            row[name] = found


def _ratio(
    outcomes: Sequence[Outcome], baseline: Sequence[Outcome], value: Callable[[Result], float | None]
) -> Spread | None:
    """Within a seed: two runs beside each other in time share what else the machine did."""
    ours, theirs = by_seed(outcomes, value), by_seed(baseline, value)
    ratios = [ours[seed] / theirs[seed] for seed in sorted(ours.keys() & theirs.keys()) if theirs[seed] > 0]
    return Spread.of(ratios) if ratios else None


def _robust(outcomes: Sequence[Outcome]) -> dict[float, Spread]:
    found: dict[float, list[float]] = {}
    for each in outcomes:
        if each.result is not None and each.result.robustness is not None:
            measured = each.result.robustness
            for epsilon, accuracy in zip(measured.epsilons, measured.accuracy, strict=True):
                found.setdefault(epsilon, []).append(accuracy)
    return {epsilon: Spread.of(found[epsilon]) for epsilon in sorted(found)}


def _target(baseline: Sequence[Outcome]) -> float | None:
    """The accuracy that counts as converged; None while the baseline has no finished run."""
    finals = [accuracies[max(accuracies)] for each in baseline if (accuracies := _validation(each))]
    return REACH * Spread.of(finals).mean if finals else None


def _reach(outcomes: Sequence[Outcome], target: float) -> Reach:
    finished = [_validation(each) for each in outcomes if each.status == "finished"]
    firsts = [[epoch for epoch, accuracy in run.items() if accuracy >= target][:1] for run in finished]
    epochs = [float(epoch) for first in firsts for epoch in first]
    return Reach(target, Spread.of(epochs) if epochs else None, len(epochs), len(finished))


def _validation(each: Outcome) -> dict[int, float]:
    """Validation accuracy by epoch of a finished run, empty for others."""
    if each.run is None or each.status != "finished":
        return {}
    return {
        epoch.epoch: epoch.validation_accuracy for epoch in each.run.epochs if epoch.validation_accuracy is not None
    }


def _tuned(study: Study, comparison: Comparison, entry: Entry) -> Tuned:
    trials = []
    for method in entry.trials:
        each = outcome(study, comparison, method, comparison.tuning_seed, TUNING)
        validation = None if each.result is None else each.result.validation
        trials.append(Trial(each, validation, picked=method == entry.method))
    return Tuned(entry, tuple(trials))


def _grid(study: Study, ablation: Ablation, grid: Grid, baseline: Cell, interval: str) -> GridSummary:
    points = list(itertools.product(*grid.axes.values()))
    if len(points) != len(grid.methods):
        raise DamagedRecordError(f"ablation {grid.name!r}: expected {len(points)} methods, found {len(grid.methods)}")
    cells = [
        _cell(study, ablation, method, point, baseline, interval)
        for method, point in zip(grid.methods, points, strict=True)
    ]
    return GridSummary(grid, tuple(cells))


def _corrected(grids: Sequence[GridSummary]) -> tuple[GridSummary, ...]:
    """All points of all grids are looked at together."""
    cells = [cell for grid in grids for cell in grid.cells]
    found = iter(corrected([cell.difference for cell in cells]))
    return tuple(
        GridSummary(grid.grid, tuple(dataclasses.replace(cell, difference=next(found)) for cell in grid.cells))
        for grid in grids
    )


def _cell(
    study: Study, ablation: Ablation, method: str, values: tuple[Any, ...], baseline: Cell | None, interval: str
) -> Cell:
    outcomes = tuple(outcome(study, ablation, method, seed, ablation.part) for seed in ablation.seeds)
    difference = None
    if baseline is not None and method != baseline.method:
        ours, theirs = by_seed(outcomes, _validation_score), by_seed(baseline.outcomes, _validation_score)
        difference = paired_difference(ours, theirs, interval)
    return Cell(method, values, outcomes, _spread(outcomes, _validation_score), difference)


def _validation_score(result: Result) -> float | None:
    return None if result.validation is None else result.validation.accuracy
