"""Draw the flow charts of our pages, which are small Mermaid texts, as pictures that need no script."""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

_LETTER, _LINE, _PAD, _GAP_X, _GAP_Y = 6.8, 17, 8, 14, 30
_NODE = re.compile(r"""(\w+)(?:[\[{]"?([^"\]}]*)"?[\]}])?""")


class Box(NamedTuple):
    """A node with its place."""

    lines: list[str]
    x: float
    y: float
    width: float
    height: float


class Flowchart(SphinxDirective):
    """A fenced block `mermaid` that holds a flow chart."""

    has_content = True

    def run(self) -> list[Any]:
        """The chart as a picture within the page."""
        return [nodes.raw("", f'<div class="chart">{picture(list(self.content))}</div>', format="html")]


def picture(lines: list[str]) -> str:
    """The chart as SVG, in the colours of the page."""
    labels, edges = read(lines)
    boxes = placed(labels, edges)
    width = max(box.x + box.width for box in boxes.values()) + 1
    height = max(box.y + box.height for box in boxes.values()) + 1
    parts = [_arrow(boxes[start], boxes[end]) for start, end in edges]
    parts += [_drawn(box) for box in boxes.values()]
    label = html.escape("; ".join(f"{start} to {end}" for start, end in edges))
    return (
        f'<svg viewBox="-1 -1 {width + 1:.0f} {height + 1:.0f}" width="{width:.0f}" role="img" aria-label="{label}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>' + "".join(parts) + "</svg>"
    )


def read(lines: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Names with labels, and arrows."""
    if lines[0].strip() != "flowchart LR":
        raise ValueError(f"expected a flowchart LR, received {lines[0]!r}")
    labels: dict[str, str] = {}
    edges = []
    for line in filter(str.strip, lines[1:]):
        found = [_NODE.fullmatch(part.strip()) for part in line.split("-->")]
        if len(found) != 2 or None in found:
            raise ValueError(f"expected A --> B, received {line!r}")
        for name, label in (one.groups() for one in found if one):
            labels[name] = label or labels.get(name, name)
        edges.append((found[0][1], found[1][1]))  # type: ignore[index]
    return labels, edges


def placed(labels: dict[str, str], edges: list[tuple[str, str]]) -> dict[str, Box]:
    """From top to bottom, since a page is narrow: rows by the longest way to a node, each row around the middle."""
    row = dict.fromkeys(labels, 0)
    for _ in labels:
        for start, end in edges:
            row[end] = max(row[end], row[start] + 1)
    # A node that nothing leads to stands right before the first one that it leads to.
    for name in labels:
        if all(end != name for _, end in edges):
            row[name] = min(row[end] for start, end in edges if start == name) - 1
    rows = [[name for name in labels if row[name] == place] for place in range(max(row.values()) + 1)]
    texts = {name: label.split("<br>") for name, label in labels.items()}
    widths = {name: max(map(len, lines)) * _LETTER + 2 * _PAD for name, lines in texts.items()}
    wide = [sum(widths[name] + _GAP_X for name in names) - _GAP_X for names in rows]
    boxes, y = {}, 0.0
    for names, width in zip(rows, wide, strict=True):
        height = max(len(texts[name]) for name in names) * _LINE + 2 * _PAD
        x = (max(wide) - width) / 2
        for name in names:
            boxes[name] = Box(texts[name], x, y, widths[name], height)
            x += widths[name] + _GAP_X
        y += height + _GAP_Y
    return boxes


def _drawn(box: Box) -> str:
    middle = box.x + box.width / 2
    first = box.y + (box.height - _LINE * len(box.lines)) / 2 + _LINE * 0.75
    lines = (
        f'<text x="{middle:.1f}" y="{first + _LINE * place:.1f}">{html.escape(line)}</text>'
        for place, line in enumerate(box.lines)
    )
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect {place} rx="5"/>' + "".join(lines)


def _arrow(start: Box, end: Box) -> str:
    x1, y1 = start.x + start.width / 2, start.y + start.height
    x2, y2 = end.x + end.width / 2, end.y
    bend = (y2 - y1) / 2
    way = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="arrow" d="{way}" marker-end="url(#tip)"/>'
