"""Format numbers for readers."""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.intervals import Difference, Spread
from ..tasks.metrics import Metric
from .blocks import Cell

#: Written as escapes, because they look like other characters.
DASH, TIMES = "\u2013", "\u00d7"
NOTHING = Cell(DASH)
BLANK = Cell(DASH, words=True)


def spread(value: Spread | None, digits: int, factor: float = 1) -> str | Cell:
    """Mean and deviation, or a dash."""
    return NOTHING if value is None else value.times(factor).text(digits)


def difference(value: Difference | None, digits: int, factor: float = 1) -> str | Cell:
    """Mean and interval, marked if the difference remains after Holm's correction, or a dash."""
    return NOTHING if value is None else Cell(value.times(factor).text(digits), marked=value.marked)


def with_unit(value: Spread, metric: Metric) -> str:
    """`95.10 ± 0.31 %`."""
    text = value.times(metric.factor).text(metric.digits)
    return f"{text} {metric.unit}" if metric.unit else text


def difference_heading(metric: Metric) -> str:
    """The heading of a column of differences with intervals."""
    return f"Difference{metric.after_difference} [95 %]"


def notes_on(metrics: Iterable[Metric]) -> list[str]:
    """A sentence for each metric whose label does not say what it is."""
    return [f"{metric.title}: {metric.note}." for metric in metrics if metric.note]


def p_value(p: float | None) -> str | Cell:
    """A p value with three digits, or a dash."""
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def epsilon(value: float) -> str:
    """The size of an attack. A multiple of half a step of 8-bit pixels is shown as such: 0.0313725 is 8/255.

    >>> epsilon(8 / 255), epsilon(0.5 / 255), epsilon(0.05), epsilon(0.0)
    ('8/255', '0.5/255', '0.05', '0')
    """
    halves = value * 510
    if round(halves) > 0 and abs(halves - round(halves)) < 1e-6:
        return f"{round(halves) / 2:g}/255"
    return f"{value:g}"


def plural(number: int, word: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
