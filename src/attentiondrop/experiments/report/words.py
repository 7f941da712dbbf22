"""The introduction of the report: what was compared, on which data, the outcome, and its limits."""

from __future__ import annotations

from typing import Any

from ..analysis.intervals import ENOUGH_SEEDS, Difference, signed
from ..analysis.outcomes import UNDONE
from ..analysis.summary import Summary
from ..tasks.registry import task_of
from .figures import listed, plural, with_unit

#: A sentence names at most so many methods. With more, it counts those on each side of the baseline, but few are named.
_MOST_NAMED, _FEW = 6, 2


def heading(summary: Summary) -> str:
    """The title of the report."""
    recipe = summary.plan.recipe
    names = " ".join(str(recipe[key]) for key in ("name", "size") if recipe.get(key))
    kinds = ["comparison"] * bool(summary.study.comparison) + ["ablation"] * bool(summary.study.ablation)
    return f"{names or 'Study'}: {' and '.join(kinds)}"


def paragraphs(summary: Summary) -> list[str]:
    """The paragraphs at the top of the report."""
    found = [_setting(summary)]
    if summary.rows:
        found.append(_outcome(summary))
        found.append(_limits(summary))
    return found


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Names and sizes of the study, for the header of the page."""
    recipe, outcomes = summary.plan.recipe, summary.outcomes
    done = sum(each.status == "finished" for each in outcomes)
    found = [
        ("data", _section(recipe, "data").get("name")),
        ("model", _section(recipe, "model").get("name")),
        ("epochs", _epochs(summary)),
        ("methods", len(summary.rows) or None),
        ("seeds", len(summary.plan.seeds)),
        ("runs finished", f"{done} of {len(outcomes)}"),
    ]
    return [(key, str(value)) for key, value in found if value is not None]


def _setting(summary: Summary) -> str:
    recipe = summary.plan.recipe
    data, model = _section(recipe, "data"), _section(recipe, "model").get("name")
    where = f" on `{data['name']}`" if data.get("name") else ""
    how = f" with the model `{model}`" if model else ""
    epochs = _epochs(summary)
    length = f", {epochs} epoch{'s' * (epochs != '1')} each" if epochs is not None else ""
    special = task_of(recipe).special(data)
    settings = f" ({'; '.join(special)})" if special else ""
    comparison, ablation = summary.study.comparison, summary.study.ablation
    parts = []
    if comparison is not None:
        seeds = plural(len(comparison.seeds), "seed")
        parts.append(
            f"{plural(len(comparison.methods), 'method')}, {seeds} each, were compared{where}{settings}{how}{length}. "
            "With the same seed, all methods start from the same weights and see the same batches."
        )
        parts.append(_tuning(summary))
    if ablation is not None:
        names = listed([f"`{grid.name}` over {listed([f'`{axis}`' for axis in grid.axes])}" for grid in ablation.grids])
        there = f"{where}{settings}{how}{length}" if comparison is None else ""
        parts.append(f"The ablation varies {names}, {plural(len(ablation.seeds), 'seed')} each{there}.")
    return " ".join(parts)


def _epochs(summary: Summary) -> str | None:
    """The epochs of a run. Some methods have more than the recipe: `longer` does."""
    planned = _section(summary.plan.recipe, "training").get("epochs")
    if not isinstance(planned, int):
        return None
    finished = [each.result for row in summary.rows for each in row.outcomes if each.status == "finished"]
    most = max([planned, *(result.epochs for result in finished if result is not None)])
    return f"{planned}" if most == planned else f"{planned} to {most}"


def _tuning(summary: Summary) -> str:
    counts = [len(row.entry.trials) for row in summary.rows]
    if not any(counts):
        return "No method was tuned: settings are as they were given."
    if min(counts) == max(counts):
        return f"Tuning tried {plural(counts[0], 'setting')} a method on the validation part."
    return (
        f"Tuning tried between {min(counts)} and {max(counts)} settings a method on the validation part; the rest of "
        "the recipe is the same for all."
    )


def _outcome(summary: Summary) -> str:
    baseline = summary.rows[0]
    metric = summary.metrics.primary
    level = baseline.scores.get(metric.name)
    if level is None:
        return f"The baseline `{baseline.label}` has no finished run yet, so there is nothing to compare with."
    start = f"The baseline `{baseline.label}` reaches a test {metric.label} of {with_unit(level, metric)}."
    unit = f"In {metric.difference_unit}, " if metric.difference_unit else ""
    lower = "" if metric.higher_is_better else " Lower is better."
    differences = {row.label: row.difference.times(metric.factor) for row in summary.rows if row.difference is not None}
    if not differences:
        return start
    if summary.comparisons == 0:
        return f"{start} There are no intervals, so no difference can be told from chance."
    apart = {label: each for label, each in differences.items() if each.interval and each.interval.excludes_zero}
    if not apart:
        return f"{start} No difference can be told from chance: every 95 % interval includes zero."
    after = f"after Holm's correction for {plural(summary.comparisons, 'comparison')}"
    told = {label: each for label, each in apart.items() if each.marked}
    only = {label: each for label, each in apart.items() if not each.marked}
    found = [
        _sentence(f"{unit}{after}, {_listed(told, metric.digits)}.") if told else f"No difference remains {after}."
    ]
    if only:
        found.append(_sentence(f"{unit}without that correction, {_listed(only, metric.digits)}."))
    rest = summary.comparisons - len(apart)
    if rest:
        found.append(f"For the other {'one' if rest == 1 else rest}, the interval includes zero.")
    return " ".join([start + lower, *found])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(told: dict[str, Difference], digits: int) -> str:
    """Which methods are above the baseline, and which below."""
    if len(told) <= _MOST_NAMED:
        return _named(told, digits)
    sides = [{label: each for label, each in told.items() if _side(each) == side} for side in ("above", "below")]
    return "; ".join((_named if len(side) <= _FEW else _counted)(side, digits) for side in sides if side)


def _named(told: dict[str, Difference], digits: int) -> str:
    lines = [(f"`{label}` is {_side(each)} the baseline", each) for label, each in told.items()]
    return listed([f"{line} ({_shown(each, digits)})" for line, each in lines])


def _counted(told: dict[str, Difference], digits: int) -> str:
    """How many methods are on one side of the baseline, and which of them is farthest from it."""
    label, most = max(told.items(), key=lambda pair: abs(pair[1].mean))
    return f"{len(told)} methods are {_side(most)} the baseline (most: `{label}`, {_shown(most, digits)})"


def _side(each: Difference) -> str:
    return "above" if each.mean > 0 else "below"


def _shown(each: Difference, digits: int) -> str:
    """The difference with its interval: the corrected one, if the difference remains after correction."""
    interval = each.holm_interval if each.marked else each.interval
    ends = "" if interval is None else f", {signed(interval.low, digits)} to {signed(interval.high, digits)}"
    return signed(each.mean, digits) + ends


def _limits(summary: Summary) -> str:
    lines = []
    if 0 < summary.seeds < ENOUGH_SEEDS:
        lines.append(
            f"With {plural(summary.seeds, 'paired seed')}, little can be said: {ENOUGH_SEEDS} or more are needed."
        )
    lost = sum(each.status in ("diverged", "failed") for row in summary.rows for each in row.outcomes)
    if lost:
        ran = f"{plural(lost, 'run')} diverged or failed"
        lines.append(f"{ran} and count in no mean, which may flatter the methods they belong to.")
    waiting = sum(each.status in UNDONE for row in summary.rows for each in row.outcomes)
    if waiting:
        lines.append(f"{plural(waiting, 'run')} of the study did not finish yet, so these numbers may change.")
    lines.append("All of this holds for this model, these data and this recipe; it says nothing about others.")
    return " ".join(lines)


def _section(recipe: dict[str, Any], key: str) -> dict[str, Any]:
    found = recipe.get(key)
    return found if isinstance(found, dict) else {}
