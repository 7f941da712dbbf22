"""Small plots of differences with intervals, for a column of a table. The column beside it has the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..analysis.intervals import Difference
from .markup import Markup, tag
from .scales import Scale, fit, without_far_off

WIDTH, HEIGHT = 200, 22
_EDGE = 12


def interval_scale(differences: Sequence[Difference]) -> Scale | None:
    """One scale for all rows, which includes zero; None if there is nothing to draw.

    A method that is far off does not widen it: its plot ends at the edge, with an arrow.
    """
    if not differences:
        return None
    intervals = without_far_off([[0.0, *ends_of(each)] for each in differences])
    # A wide interval, of few seeds, is cut off sooner than a mean.
    return fit([0.0, *intervals, *without_far_off([[0.0, each.mean] for each in differences])])


def ends_of(each: Difference) -> list[float]:
    """The mean, and the ends of both intervals."""
    known = [interval for interval in (each.interval, each.holm_interval) if interval is not None]
    return [each.mean, *(end for interval in known for end in (interval.low, interval.high))]


def group_of(difference: Difference) -> str:
    """The class of all that is drawn for a difference."""
    return "interval marked" if difference.marked else "interval"


def interval_marks(
    difference: Difference, scale: Scale, place: Callable[[float, Scale], float], y: float
) -> list[Markup]:
    """The intervals before and after correction, and the mean if it is on the scale; `place` gives the x of a value."""
    group, drawn = group_of(difference), []
    for interval, kind in ((difference.holm_interval, "thin"), (difference.interval, "bar")):
        if interval is not None and interval.low <= scale.high and interval.high >= scale.low:
            low, high = place(interval.low, scale), place(interval.high, scale)
            drawn.append(tag("path", d=f"M{low:.2f} {y}H{high:.2f}", class_=f"{group} {kind}"))
    if scale.low <= difference.mean <= scale.high:
        drawn.append(tag("circle", cx=place(difference.mean, scale), cy=y, r=3.6, class_=f"{group} dot"))
    return drawn


def interval_axis(scale: Scale, label: str) -> Markup:
    """The axis labels above the column; `label` names what the axis shows."""
    labels = [
        tag("text", text, x=_left(value, scale), y=15, class_="tick", text_anchor="middle")
        for value, text in scale.ticks(5)
    ]
    return _svg(*labels, label=label)


def interval_plot(difference: Difference | None, scale: Scale, margin: float | None = None) -> Markup:
    """One row: the zero line, the interval as a bar, the interval after correction as a thin line, the mean as a dot.

    What lies beyond the scale ends in an arrow. Differences within `margin`, the grey area, do not matter in practice.
    """
    zero = _left(0.0, scale)
    drawn = []
    if margin is not None:
        low, high = _left(-margin, scale), _left(margin, scale)
        drawn.append(tag("rect", x=low, y=0, width=high - low, height=HEIGHT, class_="margin"))
    drawn.append(tag("path", d=f"M{zero:.2f} 0V{HEIGHT}", class_="zero"))
    middle = HEIGHT / 2
    if difference is not None:
        group = group_of(difference)
        drawn += interval_marks(difference, scale, _left, middle)
        ends = ends_of(difference)
        drawn += [_arrow(-1, middle, group)] * (min(ends) < scale.low)
        drawn += [_arrow(1, middle, group)] * (max(ends) > scale.high)
    return _svg(*drawn, label=None)


def _arrow(direction: int, middle: float, group: str) -> Markup:
    """At the edge: it goes on there."""
    tip = WIDTH - 1 if direction > 0 else 1
    return tag("path", d=f"M{tip} {middle}l{-7 * direction} -4.5v9z", class_=f"{group} dot")


def _svg(*drawn: Markup, label: str | None) -> Markup:
    hidden = "true" if label is None else None
    role = None if label is None else "img"
    return tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        class_="intervals",
        role=role,
        aria_label=label,
        aria_hidden=hidden,
    )


def _left(value: float, scale: Scale) -> float:
    """The place of a value; the edge for values beyond it."""
    return _EDGE + min(1.0, max(0.0, scale.place(value))) * (WIDTH - 2 * _EDGE)
