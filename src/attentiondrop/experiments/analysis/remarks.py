"""Sentences to show under the numbers of a study, on the terminal and in the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..runs.identity import differences, trained_from
from ..runs.kinds import FINAL
from ..runs.versions import counted, run_versions
from .intervals import Difference, few_seeds_note, many_comparisons_note
from .outcomes import STATUSES, Outcome
from .summary import Row, Summary

#: Marks a difference that remains after Holm's correction. A large mean or an interval alone gets no mark.
MARK = "*"
INTERVALS = {"t": "95 % t interval", "bootstrap": "95 % bootstrap interval"}


def remarks(summary: Summary, quote: str = "") -> list[str]:
    """What a reader of the results should know, the most important first. `quote` is put around names of methods."""
    several = many_comparisons_note(*counts([row.difference for row in summary.rows]), summary.interval)
    found = [few_seeds_note(summary.seeds), several]
    rows = [*_left_out(summary, quote), *_equal(summary, quote), *_unfinished(summary, quote)]
    return [*(each for each in found if each), *rows]


def difference_remark(summary: Summary, quote: str = "") -> str:
    """How to read the column of differences."""
    baseline = "the first method" if summary.baseline is None else f"{quote}{summary.baseline.label}{quote}"
    label = summary.metrics.primary.label
    return (
        f"Difference: test {label} minus that of {baseline}{_in_unit(summary)}, over the seeds that both finished, "
        f"with its {INTERVALS[summary.interval]}; {MARK} marks what remains after Holm's correction for "
        f"{_comparisons(summary.comparisons)}."
    )


def ablation_remark(summary: Summary, quote: str = "") -> str:
    """How to read the differences of an ablation."""
    baseline = "the baseline" if summary.grid_baseline is None else f"{quote}{summary.grid_baseline.method}{quote}"
    count, excluding, _ = counts([cell.difference for grid in summary.grids for cell in grid.cells])
    label = summary.metrics.primary.label
    return (
        f"Ablation: validation {label} minus that of {baseline}{_in_unit(summary)}, over paired seeds, with its "
        f"{INTERVALS[summary.interval]}; {MARK} marks what remains after Holm's correction for {_comparisons(count)}, "
        f"of which {excluding} exclude{'s' * (excluding == 1)} zero without it. The best of many settings looks better "
        "than it is: confirm it with a comparison."
    )


def _in_unit(summary: Summary) -> str:
    unit = summary.metrics.primary.difference_unit
    direction = "" if summary.metrics.primary.higher_is_better else " (lower is better)"
    return (f", in {unit}" if unit else "") + direction


def counts(found: Sequence[Difference | None]) -> tuple[int, int, int]:
    """How many differences have an interval, how many of those exclude zero, and how many remain after correction."""
    known = [each for each in found if each is not None and each.interval is not None]
    excluding = sum(each.interval is not None and each.interval.excludes_zero for each in known)
    return len(known), excluding, sum(each.marked for each in known)


def origin_remarks(summary: Summary) -> list[str]:
    """Which runs in the folder do not count, and whether the others differ in recipe, data or versions."""
    return [*_leftovers(summary), *_plans(summary), *_data(summary), *_versions(summary)]


def _leftovers(summary: Summary) -> list[str]:
    places: dict[tuple[str, ...], list[str]] = {}
    for each in summary.left_out:
        places.setdefault(each.changes, []).append(each.place)
    lines = []
    for changes, found in places.items():
        runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
        where = found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        if changes:
            lines.append(f"Left out: {runs} of another recipe (recorded -> here: {'; '.join(changes)}), in {where}.")
        else:
            lines.append(f"Left out: {runs} of this recipe that the study does not ask for, in {where}.")
    return lines


def _plans(summary: Summary) -> list[str]:
    comparison, ablation = summary.study.comparison, summary.study.ablation
    if comparison is None or ablation is None:
        return []
    changes = differences(
        trained_from(comparison.recipe, comparison.checksums, FINAL),
        trained_from(ablation.recipe, ablation.checksums, FINAL),
    )
    text = "The ablation was made with another recipe than the comparison"
    return [f"{text} ({'; '.join(changes)}): do not compare their numbers."] if changes else []


def _data(summary: Summary) -> list[str]:
    """Compare the data of the runs with each other: plans of older versions do not record checksums."""
    checksums = {
        tuple(sorted(each.run.request.checksums.items()))
        for each in summary.outcomes
        if each.run is not None and each.part == FINAL
    }
    return ["The runs were made on different data: their checksums differ."] if len(checksums) > 1 else []


def _versions(summary: Summary) -> list[str]:
    found = Counter(run_versions(each.run) for each in summary.outcomes if each.run is not None)
    if len(found) < 2:
        return []
    return [f"The runs were made with different versions, which may change numbers: {counted(found)}."]


def _comparisons(count: int) -> str:
    return "1 comparison" if count == 1 else f"{count} comparisons"


def status_counts(outcomes: tuple[Outcome, ...]) -> str:
    """Counts of runs that have not finished, such as `1 diverged, 2 missing`; empty if all have finished."""
    counts = Counter(each.status for each in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES[1:] if counts[status])


def _left_out(summary: Summary, quote: str) -> list[str]:
    """Seeds that a difference lacks. Those that the method itself did not finish are in `_unfinished`."""
    lines = []
    for row in summary.rows:
        found = row.difference
        if found is not None and (out := [seed for seed in found.left_out if seed not in _not_finished(row)]):
            lines.append(
                f"{quote}{row.label}{quote}: seed{'s' * (len(out) > 1)} {', '.join(map(str, out))} left out of the "
                f"difference, since the baseline did not finish there; {len(found.seeds)} paired."
            )
    return lines


def _not_finished(row: Row) -> list[int]:
    return [each.seed for each in row.outcomes if each.status != "finished"]


def _equal(summary: Summary, quote: str) -> list[str]:
    lines = []
    for row in summary.rows:
        found = row.difference
        if found is not None and found.interval is None and len(found.seeds) > 1:
            same = f"the same difference on all {len(found.seeds)} seeds, which gives no interval."
            lines.append(f"{quote}{row.label}{quote}: {same}")
    return lines


def _unfinished(summary: Summary, quote: str) -> list[str]:
    lines = [
        f"{quote}{row.label}{quote}: {words} of {len(row.outcomes)} runs{_numbers_without(row)}."
        for row in summary.rows
        if (words := status_counts(row.outcomes))
    ]
    waiting = [row.entry.name for row in summary.rows if row.entry.method is None]
    return lines + ([f"Still being tuned: {', '.join(waiting)}."] if waiting else [])


def _numbers_without(row: Row) -> str:
    """What the numbers of a row are over, if some of its runs are missing."""
    if not row.count("finished"):
        return ""
    found = row.difference
    pairs = "" if found is None else f", and the difference over {len(found.seeds)} pair{'s' * (len(found.seeds) > 1)}"
    return f"; means are over the others{pairs}"
