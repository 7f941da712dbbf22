"""What a report consists of, before it is HTML or Markdown: sections of paragraphs, tables, figures and code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .markup import Markup


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backticks."""

    text: str


@dataclass(frozen=True)
class Notes:
    """Remarks, one a line."""

    lines: list[str]


@dataclass(frozen=True)
class Code:
    """Something to copy; with a `summary` it is folded away at first."""

    text: str
    summary: str | None = None


@dataclass(frozen=True)
class Picture:
    """A figure of one or more plots; Markdown leaves it out, so tables must hold the numbers too."""

    content: Markup
    caption: str


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    code: bool = False
    #: A difference that remains after Holm's correction.
    marked: bool = False
    #: In words rather than numbers: aligned to the left and never in figures.
    words: bool = False
    #: From -1 (far below the baseline) to 1 (far above), the colour of a heat map.
    shade: float | None = None
    #: Drawn instead of the text in HTML.
    plot: Markup | None = None


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows. A cell that is plain text is a number."""

    caption: str
    headings: list[str | Cell]
    rows: list[list[str | Cell]]
    #: Above the headings, what the columns of a heat map are.
    across: str | None = None
    #: A heat map: cells of equal width, coloured by their shade.
    heat: bool = False


Block: TypeAlias = Text | Notes | Code | Picture | Table


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def cell(value: str | Cell) -> Cell:
    """A plain text as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def name(method: str) -> Cell:
    """A method in the first column."""
    return Cell(method, code=True, words=True)
