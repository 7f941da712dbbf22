"""The page of the ablations (study 6): a table for each grid, means over grids, and the verdicts of P15 and P16.

Every point has two seeds, too few for an interval of its own. So the deviation of a run is estimated from all points
together: what is left of the scores when the mean of each point and of each seed is taken away. An interval is the t
interval with this deviation. It is not corrected for the number of points, and nothing here is a claim about a method.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import verdicts
from result_files import csv_rows, recipe_of
from scipy import stats

from attentiondrop.errors import AttentionDropWarning
from attentiondrop.experiments.analysis.intervals import signed
from attentiondrop.experiments.methods.grids import grid_methods

FOLDER = Path(__file__).parent / "results" / "cifar10-ablations"
NONE = "none"
#: The paper: rates over 0.5 and widths over 9 lose more than this.
ASKED = 2.0


@dataclass(frozen=True)
class Change:
    """A mean difference in points, half of its 95 % interval, and how many runs were averaged."""

    mean: float
    half: float
    runs: int

    @property
    def includes_zero(self) -> bool:
        """Whether the interval does."""
        return abs(self.mean) <= self.half

    def __str__(self) -> str:
        low, high = self.mean - self.half, self.mean + self.half
        return f"{signed(self.mean, 1)} [{signed(low, 1)}, {signed(high, 1)}]"


@dataclass(frozen=True)
class Ablations:
    """The scores of all points, and the grids that they belong to."""

    #: Method -> seed -> score on the validation part: accuracy in percent, or another metric.
    scores: dict[str, dict[int, float]]
    #: Method as the recipe writes it -> field -> values.
    grids: dict[str, dict[str, list[Any]]]
    planned: int

    @cached_property
    def deviation(self) -> tuple[float, int]:
        """Standard deviation of a run about the means of its point and of its seed, and the degrees of freedom."""
        seeds = sorted(self.scores[NONE])
        complete = [[found[seed] for seed in seeds] for found in self.scores.values() if sorted(found) == seeds]
        columns = [sum(column) / len(complete) for column in zip(*complete, strict=True)]
        middle = sum(columns) / len(seeds)
        squares = sum(
            (score - sum(row) / len(row) - column + middle) ** 2
            for row in complete
            for score, column in zip(row, columns, strict=True)
        )
        free = (len(complete) - 1) * (len(seeds) - 1)
        return math.sqrt(squares / free), free

    def change(self, methods: Iterable[str], to: str = NONE) -> Change | None:
        """The mean over these points, and over the seeds that all of them have; None if no seed is common to them."""
        found = [self.scores.get(method, {}) for method in methods]
        base = self.scores.get(to, {})
        seeds = set(base).intersection(*found)
        if not seeds:
            return None
        mean = sum(one[seed] - base[seed] for one in found for seed in seeds) / (len(found) * len(seeds))
        deviation, free = self.deviation
        # Both sides have errors; the other side has as many runs as there are seeds.
        error = deviation * math.sqrt((1 / len(found) + 1) / len(seeds))
        return Change(mean, float(stats.t.ppf(0.975, free)) * error, len(found) * len(seeds))

    def points(self, name: str, **fixed: Sequence[Any]) -> list[str]:
        """The methods of a grid, in order. `fixed`: field -> the values that are wanted."""
        axes = self.grids[name].items()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttentionDropWarning)  # high rates are what is looked at
            return grid_methods(name, {(0, field): [x for x in of if x in fixed.get(field, of)] for field, of in axes})


def read(folder: Path = FOLDER, metric: str = "accuracy", factor: float = 100.0) -> Ablations:
    """The ablations that were published. `factor`: what the metric is multiplied by."""
    rows = csv_rows(folder / "results.csv")
    recipe = recipe_of(folder)["recipe"]
    scores: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["status"] == "finished":
            scores.setdefault(row["method"], {})[int(row["seed"])] = factor * float(row[f"validation_{metric}"])
    return Ablations(scores, recipe["ablations"], len(rows))


# --- tables ----------------------------------------------------------------------------------------------------------


def state() -> str:
    """How many runs there are, and how exact they are."""
    found = read()
    done, seeds = sum(map(len, found.scores.values())), sorted(found.scores[NONE])
    level = " and ".join(f"{found.scores[NONE][seed]:.1f}" for seed in seeds)
    missing = f" {found.planned - done} runs are missing: their points have one seed." if done < found.planned else ""
    return (
        f"{done} of {found.planned} runs.{missing} `none` has {level} % (seeds {', '.join(map(str, seeds))}). "
        f"A run deviates by {found.deviation[0]:.1f} points from the mean of its point and of its seed."
    )


def grid_tables() -> str:
    """A table for each grid: differences to `none` in points of validation accuracy."""
    found = read()
    parts = []
    for name, axes in found.grids.items():
        (rows, values), *others = axes.items()
        column, across = others[0] if others else ("", [""])
        headings = [f"{rows} \\ {column}" if column else rows, *(str(x) if column else "difference" for x in across)]
        lines = [f"**`{name}`**", "", _line(headings), "| --- |" + " ---: |" * len(across)]
        for value in values:
            points = found.points(name, **{rows: [value]})
            lines.append(_line([f"`{value}`", *(_cell(found.change([point]), found) for point in points)]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(change: Change | None, found: Ablations) -> str:
    if change is None:
        return "-"
    return str(change) + (" (1 seed)" if change.runs < len(found.scores[NONE]) else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- means over grids ------------------------------------------------------------------------------------------------

HARD, HARD_AWAY, BLUR = "hard", "hard(fill=-inf)", "blur"
WEIGHTS, TAIL = "consistency+hard(p=0.5,k=5,fill=-inf)", "tailhard(p=0.5,k=5)"


def at_rate(found: Ablations, p: float) -> Change:
    """Hard masking at a rate, over both fills and all k."""
    return _mean(found, [*found.points(HARD, p=[p]), *found.points(HARD_AWAY, p=[p])])


def at_width(found: Ablations, width: int) -> Change:
    """Blur of a width, over all sigmas."""
    return _mean(found, found.points(BLUR, width=[width]))


def _mean(found: Ablations, methods: Sequence[str]) -> Change:
    change = found.change(methods)
    if change is None:
        raise SystemExit(f"{FOLDER}: expected runs of {methods[0]} and the points beside it")
    return change


def means() -> str:
    """The means that the tables are about: a line for each setting that varies."""
    found = read()
    weights = found.grids[WEIGHTS]["weight"]
    lines = {
        "`p` of hard masking, over k and both fills": {p: at_rate(found, p) for p in found.grids[HARD]["p"]},
        "`width` of the blur, over sigma": {width: at_width(found, width) for width in found.grids[BLUR]["width"]},
        "`sigma_max` of the blur, over widths": _by(found, BLUR, "sigma_max"),
        "`weight` of the consistency loss, two views, with `hard(p=0.5,k=5,fill=-inf)`": {
            weight: _mean(found, found.points(WEIGHTS, weight=[weight], views=[2])) for weight in weights
        },
        "`share` of the layers that run twice (`tailhard`), over weights": _by(found, TAIL, "share"),
    }
    most = max(map(len, lines.values()))
    table = [_line(["mean difference to `none`", *[""] * most]), "| --- |" + " --- |" * most]
    for name, changes in lines.items():
        cells = [f"**{value}**: {change}" for value, change in changes.items()]
        table.append(_line([name, *cells, *[""] * (most - len(cells))]))
    return "\n".join(table)


def _by(found: Ablations, name: str, field: str) -> dict[Any, Change]:
    """Value of a field -> the mean over the others."""
    return {value: _mean(found, found.points(name, **{field: [value]})) for value in found.grids[name][field]}


# --- the paper -------------------------------------------------------------------------------------------------------


def loses(change: Change) -> str:
    """Whether a change is a loss of more than the paper's two points."""
    if -change.mean - change.half > ASKED:
        return verdicts.REPRODUCED
    return verdicts.NOT_REPRODUCED if -change.mean + change.half < ASKED else verdicts.NOT_RESOLVED


def high_rates() -> tuple[str, str]:
    """P15: rates over 0.5 lose more than two points. Verdict and what was found."""
    found = read()
    return _judged({f"p = {p}": at_rate(found, p) for p in found.grids[HARD]["p"] if p > 0.5}, "k and both fills")


def wide_blurs() -> tuple[str, str]:
    """P16: widths over 9 lose more than two points. Verdict and what was found."""
    found = read()
    return _judged(
        {f"width {width}": at_width(found, width) for width in found.grids[BLUR]["width"] if width > 9}, "sigma"
    )


def _judged(changes: dict[str, Change], over: str) -> tuple[str, str]:
    words = "; ".join(f"{name}: {change}" for name, change in changes.items())
    return (
        verdicts.together([loses(change) for change in changes.values()]),
        f"To `none`, in points of validation accuracy, mean over {over}: {words}",
    )
