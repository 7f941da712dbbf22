"""Which methods of a screen are confirmed: the rule "Choice" of docs/evidence/protocol.md. No test score is read."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.outcomes import outcome
from attentiondrop.experiments.methods.groups import groups
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.methods.passes import passes
from attentiondrop.experiments.runs.store import Result
from attentiondrop.experiments.studies.plan import Comparison, Entry, Study
from attentiondrop.experiments.studies.step_costs import read_costs
from attentiondrop.experiments.tasks.registry import task_of

#: Always chosen.
ALWAYS = (
    "none",
    "longer(times=2)",
    "dropout",
    "dropkey",
    "r-drop",
    "r-drop(weight=0.0)",
    "hard",
    "blur",
    "blur+consistency",
)
#: So many others of our methods are chosen.
OTHERS = 3
#: The seeds of a screen.
SEEDS = [0, 1, 2]
#: Two means that differ by at most so many points are tied.
TIE = 0.1


@dataclass(frozen=True)
class Candidate:
    """One of our methods, after the screen."""

    #: As the screen was asked for it, such as "noise+consistency", and as tuning has set it.
    name: str
    method: str
    #: Mean validation score over the seeds, as it is shown.
    mean: float
    #: Passes over those of `none`.
    passes: float
    #: GPU seconds of a run by its measured step; None if nobody has measured it.
    seconds: float | None = None


@dataclass(frozen=True)
class Choice:
    """The chosen methods with their settings, and a line about each of those that the scores decided."""

    methods: list[str]
    reasons: list[str]


def choose(study: Study) -> Choice:
    """Apply the rule to a screen. Every method that the rule looks at must be there, with all its runs."""
    comparison = study.comparison
    if comparison is None or comparison.seeds != SEEDS:
        found = "an ablation" if comparison is None else f"the seeds {_listed(comparison.seeds)}"
        raise ArgumentError(f"records: expected a screen, with the seeds {_listed(SEEDS)}, found {found}")
    always = [_entry(comparison, name) for name in ALWAYS]
    results = {entry.name: _results(study, comparison, entry) for entry in always}
    ours = [_entry(comparison, name) for name in (*groups()["ours"], "tailhard")]
    others = [entry for entry in ours if entry.name not in results]
    candidates, reasons = [], []
    for entry in others:
        found = _results(study, comparison, entry)
        if all(each.status == "finished" for each in found):
            candidates.append(_candidate(study, comparison, entry, found))
        else:
            reasons.append(f"not taken: {entry.name}, since a run diverged")
    taken, why = best(candidates)
    return Choice([*(entry.method or "" for entry in always), *(each.method for each in taken)], [*reasons, *why])


def best(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The best ones, and why. One is taken after the other: of those tied with the best that is left, the cheapest."""
    if len(candidates) < OTHERS:
        raise ArgumentError(f"records: expected at least {OTHERS} others of our methods, found {len(candidates)}")
    left, taken, why = list(candidates), [], []
    while len(taken) < OTHERS:
        first = max(left, key=lambda each: each.mean)
        # Means are sums of decimal fractions: without rounding, a difference of 0.1 might be 0.1000000001.
        tied = [each for each in left if round(first.mean - each.mean, 6) <= TIE]
        measured = all(each.seconds is not None for each in tied)

        def cost(each: Candidate, measured: bool = measured) -> float:
            return each.seconds if measured and each.seconds is not None else each.passes

        one = min(tied, key=lambda each: (cost(each), -each.mean))
        unit = "GPU seconds" if measured else "passes"
        also = [f"{each.name} ({each.mean:.2f}, {cost(each):.4g} {unit})" for each in tied if each is not one]
        if not also:
            reason = f"no other within {TIE} points"
        else:
            word = "costs no more than" if one is first else "is cheaper than"
            reason = f"{word} what is within {TIE} points of {first.mean:.2f}: {', '.join(also)}"
        why.append(f"{one.mean:.2f}  {one.name} ({cost(one):.4g} {unit}): {reason}")
        taken.append(one)
        left.remove(one)
    return taken, why


def _entry(comparison: Comparison, name: str) -> Entry:
    """The method of the screen that means the same as `name`."""
    for entry in comparison.methods:
        if read_method(entry.name).text == read_method(name).text:
            return entry
    has = ", ".join(entry.name for entry in comparison.methods)
    raise ArgumentError(f"records: expected the method {name!r}, which the rule looks at, found {has}")


def _results(study: Study, comparison: Comparison, entry: Entry) -> list[Result]:
    """One result for each seed, without its test scores. A diverged run would diverge again, so it counts as ended."""
    if entry.method is None:
        raise ArgumentError(f"records: expected a finished screen, but {entry.name!r} is being tuned")
    found = []
    for seed in SEEDS:
        one = outcome(study, comparison, entry.method, seed)
        if one.result is None or one.status not in ("finished", "diverged"):
            which = f"{entry.method!r}, seed {seed}"
            raise ArgumentError(f"records: expected a finished run of {which}, found: {one.status}, {one.detail}")
        found.append(one.result.without_test())
    return found


def _candidate(study: Study, comparison: Comparison, entry: Entry, results: Sequence[Result]) -> Candidate:
    metric = task_of(comparison.recipe).metrics.primary
    method = entry.method or ""
    mean = statistics.fmean(each.validation[metric.name] for each in results if each.validation is not None)
    one = Candidate(entry.name, method, metric.factor * metric.better(mean), passes(read_method(method)))
    cost, steps = read_costs(study.folder).get(method), results[0].steps
    return one if cost is None or steps is None else dataclasses.replace(one, seconds=cost.seconds * steps)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
