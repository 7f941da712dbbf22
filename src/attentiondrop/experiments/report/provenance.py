"""Sections on where the numbers come from: cost, tuning, failures, machines, versions, the recipe, the command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from ..analysis.intervals import Spread
from ..analysis.summary import Summary, Trial
from ..runs.kinds import NAMES
from ..runs.store import AT_ONCE
from ..tasks.metrics import Metric
from .blocks import Block, Cell, Code, Section, Table, Text, name
from .figures import BLANK, NOTHING, TIMES, plural, spread


def cost(summary: Summary) -> Section | None:
    """Throughput, memory and time, also relative to the baseline."""
    if not any(row.throughput or row.seconds for row in summary.rows):
        return None
    memory = any(row.peak_memory_mib for row in summary.rows)
    headings: list[str | Cell] = ["Method", f"{summary.sample_unit.capitalize()}/s", "to baseline"]
    headings += ["Peak memory, MiB", "to baseline"] if memory else []
    body: list[list[str | Cell]] = []
    for index, row in enumerate(summary.rows):
        cells = [spread(row.throughput, 0), _ratio(row.throughput_ratio, index == 0)]
        if memory:
            cells += [spread(row.peak_memory_mib, 0), _ratio(row.memory_ratio, index == 0)]
        body.append([name(row.label), *cells, spread(row.seconds, 1)])
    caption = "Training throughput (median epoch), memory and time of finished runs, mean ± standard deviation"
    blocks: list[Block] = [Table(caption, [*headings, "Seconds a run"], body)]
    text = "Ratios are taken within a seed. Seconds include validation and measurements."
    blocks.append(Text(text if memory else f"{text} Peak memory is measured on accelerators only."))
    shared = {each.run.environment.get(AT_ONCE, "1") for row in summary.rows for each in row.outcomes if each.run}
    if shared - {"1"}:
        blocks.append(
            Text(
                f"Up to {max(map(int, shared))} runs shared the machine at a time and slowed each other down: these "
                "figures say little about the cost of a method. `attentiondrop bench` measures that."
            )
        )
    return Section("cost", "Cost", blocks)


def tuning(summary: Summary) -> Section | None:
    """The settings that were tried for each method, and the picked one."""
    if not summary.tuning or summary.study.comparison is None:
        return None
    metrics = summary.metrics
    judged = [metrics.primary, *([] if metrics.tie_break is None else [metrics.named(metrics.tie_break)])]
    body: list[list[str | Cell]] = [
        [
            Cell(tuned.entry.name, code=True, words=True),
            name(trial.outcome.method),
            *_trial(trial, judged),
            Cell("picked", words=True) if trial.picked else BLANK,
        ]
        for tuned in summary.tuning
        for trial in tuned.trials
    ]
    headings: list[str | Cell] = ["Method", Cell("Setting", words=True), *(metric.heading for metric in judged)]
    headings.append(Cell("", words=True))
    caption = f"Tried on the validation part, with seed {summary.study.comparison.tuning_seed}"
    text = f"Picked by validation {metrics.primary.label}; with one seed, chance decides between similar settings."
    return Section("tuning", "Tuning", [Table(caption, headings, body), Text(text)])


def problems(summary: Summary) -> Section:
    """Every run of the study that has no scores."""
    lost = [each for each in summary.outcomes if each.status != "finished"]
    if not lost:
        return Section("failed", "What failed", [Text(f"Nothing: all {len(summary.outcomes)} runs finished.")])
    body: list[list[str | Cell]] = [
        [
            name(each.method),
            str(each.seed),
            Cell(NAMES.get(each.part, each.part), words=True),
            Cell(each.status, words=True),
            Cell(each.detail, words=True),
        ]
        for each in lost
    ]
    headings: list[str | Cell] = [
        "Method",
        "Seed",
        Cell("Part", words=True),
        Cell("Status", words=True),
        Cell("What is known", words=True),
    ]
    caption = f"{len(lost)} of {len(summary.outcomes)} runs without scores"
    text = "Diverged: the loss stopped being a number. The same command runs what is missing or unfinished."
    return Section("failed", "What failed", [Table(caption, headings, body), Text(text)])


def environment(summary: Summary) -> Section:
    """Hardware, versions, commit, data, recipe."""
    runs = [each.run for each in summary.outcomes if each.run is not None]
    values: dict[str, Counter[str]] = {}
    sums: dict[str, Counter[str]] = {}
    for run in runs:
        for key, value in run.environment.items():
            values.setdefault(key, Counter())[value] += 1
        for part, checksum in run.request.checksums.items():
            sums.setdefault(part, Counter())[checksum] += 1
    rows: list[list[str | Cell]] = []
    for key, found in values.items():
        # Many runs have as many dates: the first and the last say enough. (results.csv has all of them.)
        dates = f"{min(found)} to {max(found)}" if key == "date" and len(found) > 1 else None
        rows.append([Cell(key, words=True), Cell(dates or _distinct(found), words=True)])
    for part, found in sums.items():
        rows.append([Cell(f"{part} data, SHA-256", words=True), Cell(_distinct(found), words=True, code=True)])
    blocks: list[Block] = []
    if rows:
        headings: list[str | Cell] = ["What", Cell("Value", words=True)]
        blocks.append(Table(f"Recorded with {len(runs)} runs", headings, rows))
    else:
        blocks.append(Text("No run has been recorded yet."))
    recipes: dict[str, list[str]] = {}
    for kind, plan in (("comparison", summary.study.comparison), ("ablation", summary.study.ablation)):
        if plan is not None:
            recipes.setdefault(json.dumps(plan.recipe, indent=2), []).append(kind)
    for text, kinds in recipes.items():
        blocks.append(Code(text, f"Recipe of the {' and the '.join(kinds)}, in full"))
    return Section("environment", "Environment", blocks)


def again(summary: Summary) -> Section:
    """How to run this study and write this page again."""
    plans = (summary.study.comparison, summary.study.ablation)
    commands = [plan.command for plan in plans if plan is not None]
    text = (
        "The same command, with the same folder, runs what is missing and keeps what is there; `attentiondrop report` "
        "with that folder writes this page again. Expect the same numbers only on the same hardware and versions."
    )
    return Section("again", "Run it again", [Code("\n".join(commands)), Text(text)])


def _ratio(value: Spread | None, baseline: bool) -> str | Cell:
    if value is None:
        return NOTHING
    return Cell("baseline") if baseline else f"{TIMES} {value.text(2)}"


def _trial(trial: Trial, judged: Sequence[Metric]) -> list[str | Cell]:
    scores = trial.validation
    if scores is None:
        return [Cell(trial.outcome.status), *([NOTHING] * (len(judged) - 1))]
    return [f"{metric.factor * scores[metric.name]:.{metric.digits}f}" for metric in judged]


def _distinct(found: Counter[str]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{value} ({plural(count, 'run')})" for value, count in found.items())
