"""Plots as SVG: axes, lines with bands, points with intervals. The style sheet of the page sets the colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .markup import Markup, escape, tag
from .palette import Look
from .scales import Scale


@dataclass(frozen=True)
class Point:
    """A value, and the range around it, if known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass
class Chart:
    """One plot. Draw into it, then get its `svg`."""

    x: Scale
    y: Scale
    x_title: str
    y_title: str
    width: int = 420
    height: int = 270
    #: Ticks of the x axis, instead of those of the scale.
    x_ticks: list[tuple[float, str]] | None = None
    margin: tuple[float, float, float, float] = (24, 12, 38, 46)
    _drawn: list[Markup] = field(default_factory=list)

    def left(self, x: float) -> float:
        """The horizontal position of a value."""
        _, right, _, left = self.margin
        return left + self.x.place(x) * (self.width - left - right)

    def top(self, y: float) -> float:
        """The vertical position of a value. A value outside the axis is drawn at its end."""
        top, _, bottom, _ = self.margin
        return self.height - bottom - min(1.0, max(0.0, self.y.place(y))) * (self.height - top - bottom)

    def band(self, points: Sequence[Point], look: Look) -> None:
        """Draw the area between `low` and `high`."""
        known = [
            (self.left(p.x), self.top(p.low), self.top(p.high))
            for p in points
            if p.low is not None and p.high is not None
        ]
        if len(known) > 1:
            there = [f"{x:.2f} {high:.2f}" for x, _, high in known]
            back = [f"{x:.2f} {low:.2f}" for x, low, _ in reversed(known)]
            self._add(look, tag("path", d=f"M{'L'.join(there + back)}Z", class_="band"))

    def line(self, points: Sequence[Point], look: Look, every: int = 1, *, enters: bool = False) -> None:
        """Draw a line through the points, with a marker at every `every`-th point and at both ends.

        If it `enters`, its first point is where it crosses the edge, and has no marker.
        """
        places = [(self.left(point.x), self.top(point.y)) for point in points]
        if len(places) > 1:
            path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)
            self._add(look, tag("path", d=path, class_="line", stroke_dasharray=look.dashes))
        last = len(places) - 1
        for index, (x, y) in enumerate(places):
            if (index in (0, last) or index % every == 0) and not (enters and index == 0):
                self._add(look, tag("path", d=look.marker, class_="marker", transform=f"translate({x:.2f} {y:.2f})"))

    def intervals(self, points: Sequence[Point], look: Look) -> None:
        """Draw a whisker from `low` to `high` at each point."""
        for point in points:
            if point.low is not None and point.high is not None:
                x, low, high = self.left(point.x), self.top(point.low), self.top(point.high)
                path = f"M{x:.2f} {low:.2f}V{high:.2f}M{x - 4:.2f} {low:.2f}h8M{x - 4:.2f} {high:.2f}h8"
                self._add(look, tag("path", d=path, class_="whisker"))

    def far_off(self, point: Point, look: Look, text: str) -> None:
        """Point to a value beyond the vertical axis, at its end, and write the value."""
        x, y = self.left(point.x), self.top(point.y)
        down = 1 if self.y.place(point.y) < 0 else -1
        arrow = tag("path", d=f"M{x:.2f} {y + 8 * down:.2f}l-4.5 {-7 * down}h9z", class_="marker")
        self._add(look, arrow)
        # Inside the plot, so that the axis does not cross the number out.
        self._drawn.append(tag("text", text, x=x + 8, y=y - 4 if down == 1 else y + 4, class_="note"))

    def rule(self, y: float, label: str = "", *, below: bool = False) -> None:
        """Draw a horizontal reference line, its label above or below it."""
        place = self.top(y)
        left, right = self.margin[3], self.width - self.margin[1]
        self._drawn.append(tag("path", d=f"M{left} {place:.2f}H{right}", class_="rule"))
        if label:
            self._drawn.append(tag("text", label, x=left + 2, y=place + (12 if below else -4), class_="note"))

    def shape(self, markup: Markup) -> None:
        """Add any other SVG element."""
        self._drawn.append(markup)

    def svg(self, label: str) -> Markup:
        """The plot. `label` describes it in words and numbers, for people who cannot see it."""
        return tag(
            "svg",
            tag("title", label),
            *self._axes(),
            *self._drawn,
            viewBox=f"0 0 {self.width} {self.height}",
            class_="plot",
            role="img",
            aria_label=label,
        )

    def _add(self, look: Look, markup: Markup) -> None:
        self._drawn.append(tag("g", markup, class_=look.group))

    def _axes(self) -> list[Markup]:
        top, right, bottom, left = self.margin
        floor, end = self.height - bottom, self.width - right
        ticks = self.y.ticks(max(5, self.height // 48))
        drawn = [tag("path", d=f"M{left} {self.top(value):.2f}H{end}", class_="grid") for value, _ in ticks]
        drawn += [
            tag("text", text, x=left - 6, y=self.top(value) + 4, class_="tick", text_anchor="end")
            for value, text in ticks
        ]
        drawn.append(tag("path", d=f"M{left} {floor}H{end}", class_="axis"))
        for value, text in self.x_ticks or self.x.ticks(7):
            place = self.left(value)
            drawn.append(tag("path", d=f"M{place:.2f} {floor}v4", class_="axis"))
            drawn.append(tag("text", text, x=place, y=floor + 16, class_="tick", text_anchor="middle"))
        drawn.append(
            tag("text", self.x_title, x=(left + end) / 2, y=self.height - 5, class_="title", text_anchor="middle")
        )
        drawn.append(tag("text", escape(self.y_title), x=2, y=top - 11, class_="title"))
        return drawn
