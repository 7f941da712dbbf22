"""What models do, shown: texts of the first seed of each method, and maps of its attention."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.summary import Row, Summary
from ..tasks.exhibits import AttentionMap, Examples, Exhibits
from .blocks import Block, Cell, Picture, Section, Table, Text
from .markup import Markup, code, join, tag

CAPTION = (
    "Attention of one head for one sentence: a row for each query, a column for each key, darker for more weight. With "
    "a method that acts on attention, the second map shows one draw of what it does in training."
)
#: Sizes in pixels: a cell, a letter of a label, the longest label.
_CELL, _LETTER, _LONGEST = 13, 6.2, 10


def exhibited(summary: Summary) -> Section | None:
    """The section; None if no run has anything to show."""
    found = {row.label: shown for row in summary.rows if (shown := _first(row)) is not None}
    if not found:
        return None
    blocks: list[Block] = [*_tables({label: shown.examples for label, shown in found.items()})]
    figures = [_figure(label, each) for label, shown in found.items() for each in shown.maps]
    if figures:
        blocks.append(Picture(tag("div", *figures, class_="panels"), CAPTION))
    return Section("examples", "Examples", blocks)


def signatures(summary: Summary) -> list[str]:
    """How the metrics were computed: a line for each one with a signature. Runs may differ, if versions did."""
    results = [each.result for row in summary.rows for each in row.outcomes if each.result is not None]
    found = {(name, text) for result in results for name, text in (result.signatures or {}).items()}
    names = [metric.name for metric in summary.metrics.all]
    known = sorted((pair for pair in found if pair[0] in names), key=lambda pair: (names.index(pair[0]), pair[1]))
    return [f"{summary.metrics.named(name).label}: `{text}`" for name, text in known]


def _first(row: Row) -> Exhibits | None:
    shown = (each.result.exhibits for each in row.outcomes if each.result is not None)
    return next((each for each in shown if each is not None), None)


def _tables(found: dict[str, tuple[Examples, ...]]) -> list[Block]:
    """One table for each title: the columns that all methods share, then the last column of each method."""
    titles = dict.fromkeys(each.title for examples in found.values() for each in examples)
    blocks: list[Block] = []
    for title in titles:
        mine = {label: each for label, examples in found.items() for each in examples if each.title == title}
        leading = {(each.headings[:-1], tuple(line[:-1] for line in each.rows)) for each in mine.values()}
        for headings, lines in sorted(leading):
            same = {
                label: each
                for label, each in mine.items()
                if (each.headings[:-1], tuple(line[:-1] for line in each.rows)) == (headings, lines)
            }
            body = [
                [*map(_words, line), *(_words(each.rows[number][-1]) for each in same.values())]
                for number, line in enumerate(lines)
            ]
            columns = [*map(_words, headings), *(Cell(label, code=True, words=True) for label in same)]
            blocks.append(Table(f"{title}, by the first seed of each method", list(columns), list(map(list, body))))
    return blocks or [Text("No texts to show.")]


def _words(text: str) -> Cell:
    return Cell(text, words=True)


def _figure(label: str, content: AttentionMap) -> Markup:
    maps = [("without", content.before)] + ([] if content.after is None else [("with", content.after)])
    drawn = [_heat_map(content, weights, f"{content.title}, {which} {label}") for which, weights in maps]
    caption = tag("figcaption", content.title, tag("span", code(label)))
    row = tag("div", *drawn, style="display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-end")
    return tag("figure", caption, row, class_="panel")


def _heat_map(content: AttentionMap, weights: Sequence[Sequence[float]], words: str) -> Markup:
    rows, columns = [[text[:_LONGEST] for text in side] for side in (content.queries, content.keys)]
    left, top = (8 + _LETTER * max(map(len, side), default=0) for side in (rows, columns))
    width, height = left + _CELL * len(columns) + 2, top + _CELL * len(rows) + 2
    most = max((weight for row in weights for weight in row), default=0.0) or 1.0
    shapes = [
        tag(
            "rect",
            x=left + _CELL * column,
            y=top + _CELL * row,
            width=_CELL - 1,
            height=_CELL - 1,
            fill="currentColor",
            fill_opacity=float(f"{0.04 + 0.96 * weight / most:.3f}"),
        )
        for row, line in enumerate(weights)
        for column, weight in enumerate(line)
    ]
    labels = [
        tag("text", text, x=left - 4, y=top + _CELL * (row + 0.75), text_anchor="end", font_size=10)
        for row, text in enumerate(rows)
    ]
    for column, text in enumerate(columns):
        x, y = left + _CELL * (column + 0.75), top - 4
        labels.append(tag("text", text, transform=f"translate({x:.1f} {y:.1f}) rotate(-90)", font_size=10))
    inside = join(tag("title", words), *shapes, *labels)
    return tag("svg", inside, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", style=f"width:{width:.0f}px")
