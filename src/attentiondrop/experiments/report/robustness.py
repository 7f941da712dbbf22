"""Accuracy under attack, and whether the attack is sound."""

from __future__ import annotations

from collections import Counter

from ...scores import RobustnessReport
from ..analysis.summary import Row, Summary
from ..runs.store import Run, attacked_all, scored_by
from .blocks import Block, Cell, Notes, Picture, Section, Table, name
from .chart import Chart, Point
from .figures import BLANK, NOTHING, epsilon, spread
from .markup import join
from .palette import Look, legend
from .scales import Scale, fit

_NORMS = {"linf": "L∞", "l2": "L2"}


def robustness(summary: Summary, looks: dict[str, Look]) -> Section | None:
    """The section; None if no attack was run."""
    rows = [row for row in summary.rows if row.robust]
    if not rows:
        return None
    epsilons = sorted({value for row in rows for value in row.robust})
    blocks: list[Block] = [_table(summary.rows, epsilons)]
    if len(epsilons) > 1:
        blocks.append(_plot(rows, epsilons, looks))
    blocks.append(Notes([*_how(rows), *_soundness(rows)]))
    return Section("robustness", "Robustness", blocks)


def _table(rows: tuple[Row, ...], epsilons: list[float]) -> Table:
    headings: list[str | Cell] = [
        "Method",
        *(f"ε = {epsilon(value)}" for value in epsilons),
        Cell("Attack", words=True),
    ]
    body: list[list[str | Cell]] = []
    for row in rows:
        attacks = _attacks(row)
        doubtful = sum(not each.sound for each in attacks)
        verdict = f"doubtful in {doubtful} of {len(attacks)} runs" if doubtful else "sound"
        cells = [spread(row.robust[value], 2, 100) if value in row.robust else NOTHING for value in epsilons]
        body.append([name(row.label), *cells, Cell(verdict, words=True) if attacks else BLANK])
    return Table("Accuracy under attack, %, mean ± standard deviation over the seeds", headings, body)


def _plot(rows: list[Row], epsilons: list[float], looks: dict[str, Look]) -> Picture:
    # At equal distances: sizes of attacks differ by large factors, and a logarithmic axis could not show zero.
    places = {value: float(index) for index, value in enumerate(epsilons)}
    curves = {
        row.label: [_point(value, places[value], row) for value in epsilons if value in row.robust] for row in rows
    }
    heights = [
        value for points in curves.values() for p in points for value in (p.y, p.low, p.high) if value is not None
    ]
    scale = fit([0.0, *(max(0.0, value) for value in heights)], ceiling=100)
    ticks = [(place, epsilon(value)) for value, place in places.items()]
    chart = Chart(Scale(0.0, max(1.0, ticks[-1][0])), scale, "ε, not to scale", "accuracy, %", x_ticks=ticks)
    for label, points in curves.items():
        chart.band(points, looks[label])
    for label, points in curves.items():
        chart.line(points, looks[label])
    words = [
        f"{label} from {points[0].y:.1f} % at ε = {epsilon(epsilons[int(points[0].x)])} to {points[-1].y:.1f} % "
        f"at ε = {epsilon(epsilons[int(points[-1].x)])}"
        for label, points in curves.items()
    ]
    svg = chart.svg(f"Accuracy under attack by ε: {'; '.join(words)}.")
    caption = (
        "Accuracy over the size of the attack, mean over the seeds; bands are one standard deviation to both sides."
    )
    return Picture(join(legend({label: looks[label] for label in curves}), svg), caption)


def _point(value: float, place: float, row: Row) -> Point:
    found = row.robust[value].times(100)
    if found.std is None:
        return Point(place, found.mean)
    return Point(place, found.mean, found.mean - found.std, found.mean + found.std)


def _attacked(row: Row) -> list[tuple[Run, RobustnessReport]]:
    runs = [each.run for each in row.outcomes if each.run is not None and each.result is not None]
    return [
        (run, run.result.robustness) for run in runs if run.result is not None and run.result.robustness is not None
    ]


def _attacks(row: Row) -> list[RobustnessReport]:
    return [attack for _, attack in _attacked(row)]


def which_examples(run: Run, attack: RobustnessReport) -> str:
    """Which test examples were attacked. Records of older versions do not say it: they were the first ones."""
    if attacked_all(run):
        return f"all {attack.examples} test examples"
    if scored_by(run).get("evaluation", {}).get("pgd_choice") == "stratified":
        return f"{attack.examples} test examples of all classes"
    return f"the first {attack.examples} test examples"


def _how(rows: list[Row]) -> list[str]:
    ways = Counter(
        f"PGD in {_NORMS.get(attack.norm, attack.norm)}, {attack.steps} steps, {attack.restarts} random starts, "
        f"{which_examples(run, attack)}"
        for row in rows
        for run, attack in _attacked(row)
    )
    return [f"Attack: {'; '.join(ways)}. The accuracy is an upper bound: a stronger attack may lower it."]


def _soundness(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        attacks = _attacks(row)
        for text, count in Counter(text for each in attacks for text in each.notes).items():
            lines.append(f"`{row.label}`: {text} ({count} of {len(attacks)} runs).")
    if any(not each.sound for row in rows for each in _attacks(row)):
        lines.append("A doubtful attack may be too weak: its accuracy says little about robustness.")
    return lines
