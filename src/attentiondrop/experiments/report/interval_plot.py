"""Small plots of differences with intervals, for a column of a table. The column beside it has the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.intervals import Difference
from .markup import Markup, tag
from .scales import Scale, fit

WIDTH, HEIGHT = 200, 22
_EDGE = 12


def interval_scale(differences: Sequence[Difference]) -> Scale | None:
    """One scale for all rows, which includes zero; None if there is nothing to draw."""
    if not differences:
        return None
    ends = [end for each in differences if each.interval for end in (each.interval.low, each.interval.high)]
    return fit([0.0, *(each.mean for each in differences), *ends])


def interval_axis(scale: Scale, label: str) -> Markup:
    """The axis labels above the column; `label` names what the axis shows."""
    labels = [
        tag("text", text, x=_left(value, scale), y=15, class_="tick", text_anchor="middle")
        for value, text in scale.ticks(5)
    ]
    return _svg(*labels, label=label)


def interval_plot(difference: Difference | None, scale: Scale) -> Markup:
    """One row: the zero line, the interval as a bar, the mean as a dot."""
    zero = _left(0.0, scale)
    drawn = [tag("path", d=f"M{zero:.2f} 0V{HEIGHT}", class_="zero")]
    middle = HEIGHT / 2
    if difference is not None:
        group = "interval marked" if difference.marked else "interval"
        if difference.interval is not None:
            low, high = _left(difference.interval.low, scale), _left(difference.interval.high, scale)
            drawn.append(tag("path", d=f"M{low:.2f} {middle}H{high:.2f}", class_=f"{group} bar"))
        mean = _left(difference.mean, scale)
        drawn.append(tag("circle", cx=mean, cy=middle, r=3.6, class_=f"{group} dot"))
    return _svg(*drawn, label=None)


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
    return _EDGE + scale.place(value) * (WIDTH - 2 * _EDGE)
