"""The look of each method in all plots: a colour (distinct for colour-blind people too), a dash pattern, a marker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .markup import Markup, code, tag

#: Colours are variables of the style sheet, which has a light and a dark variant of each.
COLOURS = 8
_DASHES = (None, "7 3", "2 2.5", "8 3 2 3", "11 4", "4 2", "1 3", "9 2 2 2 2 2")
_MARKERS = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",  # circle
    "M-2.9 -2.9h5.8v5.8h-5.8z",  # square
    "M0 -3.8L3.6 2.7H-3.6z",  # triangle
    "M0 -4.2L3.6 0L0 4.2L-3.6 0z",  # diamond
    "M0 3.8L3.6 -2.7H-3.6z",  # triangle, upside down
    "M-1.2 -3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",  # plus
    "M-3.8 0L2.7 -3.6V3.6z",  # triangle to the left
    "M-3.6 -1.5L0 -4L3.6 -1.5L2.3 3.2H-2.3z",  # pentagon
)


@dataclass(frozen=True)
class Look:
    """The look of the method with this number. The baseline is 0; None is for plots that do not compare methods."""

    number: int | None

    @property
    def group(self) -> str:
        """The CSS classes that set the colour."""
        return "series accent" if self.number is None else f"series c{self.number % COLOURS}"

    @property
    def dashes(self) -> str | None:
        """The dash pattern. After eight methods the colours repeat, with other dashes."""
        number = self.number or 0
        return _DASHES[(number + number // COLOURS) % len(_DASHES)]

    @property
    def marker(self) -> str:
        """The SVG path of the marker, around the origin."""
        number = self.number or 0
        return _MARKERS[(number + 2 * (number // COLOURS)) % len(_MARKERS)]


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Method -> look, in order."""
    return {method: Look(number) for number, method in enumerate(methods)}


def legend(methods: dict[str, Look]) -> Markup:
    """The legend: a sample of the look of each method."""
    entries = [tag("li", _sample(look), code(method)) for method, look in methods.items()]
    return tag("ul", *entries, class_="legend")


def _sample(look: Look) -> Markup:
    line = tag("path", d="M1 7H33", class_="line", stroke_dasharray=look.dashes)
    marker = tag("path", d=look.marker, class_="marker", transform="translate(17 7)")
    drawn = tag("g", line, marker, class_=look.group)
    return tag("svg", drawn, viewBox="0 0 34 14", width=34, height=14, aria_hidden="true")
