"""Which methods a reader can choose as the baseline of the differences."""

from __future__ import annotations

from ..analysis.summary import Row, Summary
from ..methods import COMPARATORS
from ..methods.catalogue import parts_of

#: A page offers at most so many baselines. Each one adds a table with a plot for every other method, so the page would
#: grow with the square of the number of methods, by megabytes if there are many.
MOST = 16
#: The usual regularisers that others are compared with. They count as controls here, beside the group of that name.
_USUAL = frozenset({"dropout", "r-drop"})


def comparable(summary: Summary) -> list[Row]:
    """The baseline of the report, and the rows that have a difference to it."""
    return [row for row in summary.rows if row is summary.baseline or row.difference is not None]


def offered(summary: Summary) -> list[Row]:
    """The rows to choose from, the baseline of the report first; empty if there is nothing to choose.

    Up to `MOST` methods: all of them. More: the baseline of the report, the best method, and the controls, as many of
    them as fit.
    """
    rows, metric = comparable(summary), summary.metrics.primary
    # Two methods have a single difference. With the other one as the baseline, only its sign would change.
    if len(rows) < 3:
        return []
    if len(rows) <= MOST:
        return rows
    best = max(rows, key=lambda row: metric.better(row.scores[metric.name].mean))
    wanted = dict.fromkeys(row.label for row in (rows[0], best, *filter(_is_control, rows)))
    kept = list(wanted)[:MOST]
    return [row for row in rows if row.label in kept]


def _is_control(row: Row) -> bool:
    """Whether all parts of a method are controls, as in `none`, `longer(times=2)` or `r-drop(weight=1.0,p=0.1)`."""
    return row.entry.method is not None and all(
        part in _USUAL or (part in COMPARATORS and COMPARATORS[part].group == "controls")
        for part in parts_of(row.entry.method)
    )
