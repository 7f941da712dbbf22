"""From the folder of a study to its numbers: read every run once, pair the seeds, summarise."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import AttentionDropError, bad_argument
from ...validation import one_of
from ..files.whole_files import DamagedRecordError
from ..methods.parse import read_method
from ..runs.kinds import TUNING
from ..runs.store import Result
from ..studies.plan import Ablation, Comparison, Entry, Grid, Study
from ..studies.step_costs import StepCost, read_costs
from ..tasks.metrics import Metric, Metrics
from ..tasks.registry import task_of
from .gpu_time import gpu_seconds
from .improvement import Improvement, improvement
from .intervals import KINDS, Difference, Spread, corrected, paired_difference
from .left_out import left_out
from .outcomes import Outcome, by_seed, outcome
from .summary import Cell, GridSummary, Reach, Row, Summary, Trial, Tuned

#: Takes a number from the result of a run; None if the result does not have it.
Value = Callable[[Result], float | None]

#: A run has converged when its primary metric on the validation part reaches this share of the baseline's final mean;
#: for a metric that is better when it is lower, the mean divided by this share.
REACH = 0.95


def summarise(study: Study, interval: str = "t", baseline: str | None = None) -> Summary:
    """Read every run of a study and summarise them. `interval` is "t" or "bootstrap", see `intervals`.

    Differences are to the first method of the comparison, or to `baseline`, which then comes first.
    """
    one_of("interval", interval, KINDS)
    if baseline is not None:
        study = with_baseline(study, baseline)
    metrics = task_of(study.plan.recipe).metrics
    rows: tuple[Row, ...] = ()
    tuning: tuple[Tuned, ...] = ()
    grids: tuple[GridSummary, ...] = ()
    point: Cell | None = None
    if study.comparison is not None:
        rows = _rows(study, study.comparison, metrics, interval)
        tuning = tuple(_tuned(study, study.comparison, entry) for entry in study.comparison.methods if entry.trials)
    if study.ablation is not None:
        point = _cell(study, study.ablation, metrics.primary, study.ablation.baseline, (), None, interval)
        grids = _corrected(
            [_grid(study, study.ablation, metrics.primary, grid, point, interval) for grid in study.ablation.grids]
        )
    found = Summary(study, interval, metrics, rows, tuning, grids, point)
    return dataclasses.replace(found, left_out=left_out(found))


def with_baseline(study: Study, name: str) -> Study:
    """The study with another method first: one of its methods, as the user asked for it, or in full in any spelling."""
    methods = [] if study.comparison is None else study.comparison.methods
    wanted = [each for each in methods if name in (each.name, each.method)]
    if not wanted:
        # Only with what tuning has chosen: `hard(k=5,p=0.1)` is not what was asked for as `hard`, and then tuned.
        full = _in_full(name)
        wanted = [each for each in methods if each.method is not None and _in_full(each.method) == full]
    if not wanted:
        known = ", ".join(each.name for each in methods) or "no comparison"
        raise bad_argument("baseline", f"a method of the comparison ({known})", name)
    return _with_first(study, wanted[0])


def against(summary: Summary, baseline: Row) -> Summary:
    """The summary with differences to another of its rows, as `summarise` gives it for that `baseline`.

    No run is read again, so a report can show the differences to every method.
    """
    rows = _to_first(
        [baseline, *(row for row in summary.rows if row is not baseline)], summary.metrics, summary.interval
    )
    tuning = tuple(sorted(summary.tuning, key=lambda tuned: tuned.entry is not baseline.entry))
    return dataclasses.replace(summary, study=_with_first(summary.study, baseline.entry), rows=rows, tuning=tuning)


def _in_full(text: str) -> str:
    """The canonical text of a method; a text that is none stays as it is."""
    try:
        return read_method(text).text
    except AttentionDropError:
        return text


def _with_first(study: Study, entry: Entry) -> Study:
    if study.comparison is None:
        return study
    others = [each for each in study.comparison.methods if each is not entry]
    return dataclasses.replace(study, comparison=dataclasses.replace(study.comparison, methods=[entry, *others]))


def _rows(study: Study, comparison: Comparison, metrics: Metrics, interval: str) -> tuple[Row, ...]:
    costs = read_costs(study.folder)
    return _to_first(
        [_alone(study, comparison, metrics, entry, costs) for entry in comparison.methods], metrics, interval
    )


def _alone(study: Study, comparison: Comparison, metrics: Metrics, entry: Entry, costs: dict[str, StepCost]) -> Row:
    """A row with the numbers that need no baseline."""
    method = entry.method
    outcomes = tuple(outcome(study, comparison, method, seed) for seed in comparison.seeds) if method else ()
    return Row(
        entry,
        outcomes,
        metrics.primary,
        {metric.name: found for metric in metrics.all if (found := _spread(outcomes, _test(metric.name)))},
        robust=_robust(outcomes),
        throughput=_spread(outcomes, _COSTS["throughput"]),
        peak_memory_mib=_spread(outcomes, _COSTS["peak_memory_mib"]),
        seconds=_spread(outcomes, _COSTS["seconds"]),
        gpu_seconds=_gpu_seconds(outcomes, costs),
        cost=costs.get(method or ""),
    )


def _to_first(rows: Sequence[Row], metrics: Metrics, interval: str) -> tuple[Row, ...]:
    """The rows with all numbers that compare them with the first one."""
    if not rows:
        return ()
    primary, baseline = metrics.primary, rows[0].outcomes
    target = _target(metrics.each_epoch, baseline)
    compared = [metric for metric in metrics.all if metric.compared]
    differences = [
        {} if index == 0 else _differences(compared, row.outcomes, baseline, interval) for index, row in enumerate(rows)
    ]
    # Readers look at all differences of one table together, so Holm's correction counts all of them.
    for family in ([primary], [metric for metric in compared if metric != primary]):
        _correct(differences, [metric.name for metric in family])
    return tuple(
        dataclasses.replace(
            row,
            throughput_ratio=_ratio(row.outcomes, baseline, _COSTS["throughput"]),
            memory_ratio=_ratio(row.outcomes, baseline, _COSTS["peak_memory_mib"]),
            differences=apart,
            reach=None if target is None else _reach(metrics.each_epoch, row.outcomes, target),
            improvement=None if index == 0 else _improvement(primary, row.outcomes, baseline),
        )
        for index, (row, apart) in enumerate(zip(rows, differences, strict=True))
    )


def _test(name: str) -> Value:
    return lambda result: None if result.test is None else result.test.get(name)


def _validation(name: str) -> Value:
    return lambda result: None if result.validation is None else result.validation.get(name)


_COSTS: dict[str, Value] = {
    "throughput": lambda result: result.throughput,
    "peak_memory_mib": lambda result: result.peak_memory_mib,
    "seconds": lambda result: result.seconds,
}


def _spread(outcomes: Sequence[Outcome], value: Value) -> Spread | None:
    numbers = list(by_seed(outcomes, value).values())
    return Spread.of(numbers) if numbers else None


def _differences(
    metrics: Sequence[Metric], outcomes: Sequence[Outcome], baseline: Sequence[Outcome], interval: str
) -> dict[str, Difference]:
    values = {metric.name: _test(metric.name) for metric in metrics}
    found = {
        name: paired_difference(by_seed(outcomes, value), by_seed(baseline, value), interval)
        for name, value in values.items()
    }
    return {name: difference for name, difference in found.items() if difference is not None}


def _correct(rows: Sequence[dict[str, Difference]], family: Sequence[str]) -> None:
    places = [(row, name) for row in rows for name in family if name in row]
    for (row, name), found in zip(places, corrected([row[name] for row, name in places]), strict=True):
        if found is not None:
            row[name] = found


def _improvement(metric: Metric, outcomes: Sequence[Outcome], baseline: Sequence[Outcome]) -> Improvement | None:
    ours, theirs = (
        {seed: metric.better(value) for seed, value in by_seed(each, _test(metric.name)).items()}
        for each in (outcomes, baseline)
    )
    return improvement(ours, theirs)


def _gpu_seconds(outcomes: Sequence[Outcome], costs: dict[str, StepCost]) -> Spread | None:
    found = [seconds for each in outcomes if (seconds := gpu_seconds(each, costs)) is not None]
    return Spread.of(found) if found else None


def _ratio(outcomes: Sequence[Outcome], baseline: Sequence[Outcome], value: Value) -> Spread | None:
    """The ratio of two runs with the same seed: they ran close in time, so the machine was about equally busy."""
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


def _target(metric: Metric, baseline: Sequence[Outcome]) -> float | None:
    """The value at which a run counts as converged; None while the baseline has no finished run."""
    finals = [values[max(values)] for each in baseline if (values := _by_epoch(metric, each))]
    if not finals:
        return None
    mean = Spread.of(finals).mean
    return REACH * mean if metric.higher_is_better else mean / REACH


def _reach(metric: Metric, outcomes: Sequence[Outcome], target: float) -> Reach:
    finished = [_by_epoch(metric, each) for each in outcomes if each.status == "finished"]
    goal = metric.better(target)
    firsts = [[epoch for epoch, value in run.items() if metric.better(value) >= goal][:1] for run in finished]
    epochs = [float(epoch) for first in firsts for epoch in first]
    return Reach(target, Spread.of(epochs) if epochs else None, len(epochs), len(finished))


def _by_epoch(metric: Metric, each: Outcome) -> dict[int, float]:
    """Epoch -> metric on the validation part, of a finished run; empty for other runs."""
    if each.run is None or each.status != "finished":
        return {}
    return {
        epoch.epoch: epoch.validation[metric.name]
        for epoch in each.run.epochs
        if epoch.validation is not None and metric.name in epoch.validation
    }


def _tuned(study: Study, comparison: Comparison, entry: Entry) -> Tuned:
    trials = []
    for method in entry.trials:
        each = outcome(study, comparison, method, comparison.tuning_seed, TUNING)
        validation = None if each.result is None else each.result.validation
        trials.append(Trial(each, validation, picked=method == entry.method))
    return Tuned(entry, tuple(trials))


def _grid(study: Study, ablation: Ablation, primary: Metric, grid: Grid, baseline: Cell, interval: str) -> GridSummary:
    points = list(itertools.product(*grid.axes.values()))
    if len(points) != len(grid.methods):
        raise DamagedRecordError(f"ablation {grid.name!r}: expected {len(points)} methods, found {len(grid.methods)}")
    cells = [
        _cell(study, ablation, primary, method, point, baseline, interval)
        for method, point in zip(grid.methods, points, strict=True)
    ]
    return GridSummary(grid, tuple(cells))


def _corrected(grids: Sequence[GridSummary]) -> tuple[GridSummary, ...]:
    """The grids after Holm's correction, which counts all points of all grids."""
    cells = [cell for grid in grids for cell in grid.cells]
    found = iter(corrected([cell.difference for cell in cells]))
    return tuple(
        GridSummary(grid.grid, tuple(dataclasses.replace(cell, difference=next(found)) for cell in grid.cells))
        for grid in grids
    )


def _cell(
    study: Study,
    ablation: Ablation,
    primary: Metric,
    method: str,
    values: tuple[Any, ...],
    baseline: Cell | None,
    interval: str,
) -> Cell:
    outcomes = tuple(outcome(study, ablation, method, seed, ablation.part) for seed in ablation.seeds)
    score = _validation(primary.name)
    difference = None
    if baseline is not None and method != baseline.method:
        difference = paired_difference(by_seed(outcomes, score), by_seed(baseline.outcomes, score), interval)
    return Cell(method, values, outcomes, _spread(outcomes, score), difference)
