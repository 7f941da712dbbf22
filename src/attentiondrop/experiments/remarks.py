"""Sentences that belong under the numbers of a study, wherever they are shown."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from .outcomes import STATUSES, Outcome
from .statistics import few_seeds_note, many_comparisons_note
from .study import FINAL
from .summary import Summary

#: Marks a difference whose interval excludes zero; nothing is marked for its mean alone.
MARK = "*"
INTERVALS = {"t": "95 % t interval", "bootstrap": "95 % bootstrap interval"}


def remarks(summary: Summary, quote: str = "") -> list[str]:
    """What a reader of the results should know, the most important first. Methods are put between `quote` signs."""
    found = [few_seeds_note(summary.seeds), many_comparisons_note(summary.comparisons)]
    rows = [*_left_out(summary, quote), *_equal(summary, quote), *_unfinished(summary, quote)]
    return [*(each for each in found if each), *rows]


def difference_remark(summary: Summary, quote: str = "") -> str:
    """How the column of differences is to be read."""
    baseline = "the first method" if summary.baseline is None else f"{quote}{summary.baseline.label}{quote}"
    return (
        f"Difference: test accuracy minus that of {baseline}, in points, over the seeds that both finished, with its "
        f"{INTERVALS[summary.interval]}; {MARK} marks an interval that excludes zero."
    )


def ablation_remark(summary: Summary, quote: str = "") -> str:
    """How the differences of an ablation are to be read."""
    baseline = "the baseline" if summary.grid_baseline is None else f"{quote}{summary.grid_baseline.method}{quote}"
    differences = [cell.difference for grid in summary.grids for cell in grid.cells]
    count = sum(each is not None and each.interval is not None for each in differences)
    return (
        f"Ablation: validation accuracy minus that of {baseline}, in points, over paired seeds, with its "
        f"{INTERVALS[summary.interval]}; {MARK} marks an interval that excludes zero, as 1 in 20 does by chance "
        f"({count} were looked at). The best of many settings looks better than it is: confirm it with a comparison."
    )


def _within(recipe: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """The part of a recipe that a run records: it leaves out what does not change its numbers."""
    return {
        key: _within(recipe[key], value)
        if isinstance(value, dict) and isinstance(recipe.get(key), dict)
        else recipe.get(key)
        for key, value in recorded.items()
    }


def settings_remarks(summary: Summary) -> list[str]:
    """Runs that were made with other settings or data than the study now asks for; they should be run again."""
    found: dict[str, list[str]] = {}
    compared = {_key(each) for row in summary.rows for each in row.outcomes}
    for each in summary.outcomes:
        plan = summary.study.comparison if _key(each) in compared else summary.study.ablation
        if each.part == FINAL and each.run is not None and plan is not None:
            request = each.run.request
            for change in request.changes(dataclasses.replace(request, recipe=_within(plan.recipe, request.recipe))):
                found.setdefault(change, []).append(f"{each.method}, seed {each.seed}")
    remarks = [
        f"{_some(runs)} made with other settings than the study now names (recorded -> now: {change})"
        for change, runs in found.items()
    ]
    checksums = {
        tuple(sorted(each.run.request.checksums.items()))
        for each in summary.outcomes
        if each.run is not None and each.part == FINAL
    }
    if len(checksums) > 1:
        remarks.append("The runs were made on different data: their checksums differ.")
    return remarks


def status_counts(outcomes: tuple[Outcome, ...]) -> str:
    """In words, how runs that have not finished ended: `1 diverged, 2 missing`; empty if all have finished."""
    counts = Counter(each.status for each in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES[1:] if counts[status])


def _key(each: Outcome) -> tuple[str, str, int]:
    return each.part, each.method, each.seed


def _left_out(summary: Summary, quote: str) -> list[str]:
    lines = []
    for row in summary.rows:
        if row.difference is not None and row.difference.left_out:
            out, kept = row.difference.left_out, len(row.difference.seeds)
            lines.append(
                f"{quote}{row.label}{quote}: seed{'s' * (len(out) > 1)} {', '.join(map(str, out))} left out of the "
                f"difference, since only one of the two methods finished there; {kept} paired."
            )
    return lines


def _equal(summary: Summary, quote: str) -> list[str]:
    lines = []
    for row in summary.rows:
        found = row.difference
        if found is not None and found.interval is None and len(found.seeds) > 1:
            same = f"the same difference on all {len(found.seeds)} seeds, which gives no interval."
            lines.append(f"{quote}{row.label}{quote}: {same}")
    return lines


def _unfinished(summary: Summary, quote: str) -> list[str]:
    found = [
        f"{quote}{row.label}{quote}: {words} of {len(row.outcomes)} runs; means are over the others."
        for row in summary.rows
        if (words := status_counts(row.outcomes))
    ]
    waiting = [row.entry.name for row in summary.rows if row.entry.method is None]
    return found + ([f"Still being tuned: {', '.join(waiting)}."] if waiting else [])


def _some(runs: list[str]) -> str:
    if len(runs) == 1:
        return f"{runs[0]} was"
    return f"{len(runs)} runs ({runs[0]} and others) were"
