"""The parts of a report, before they become HTML or Markdown: sections of text, tables, figures, code and choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .markup import Markup


@dataclass(frozen=True)
class Text:
    """A paragraph. Text in backticks is shown as code."""

    text: str


@dataclass(frozen=True)
class Notes:
    """A list of remarks."""

    lines: list[str]


@dataclass(frozen=True)
class Code:
    """Text to copy. With a `summary` it is folded at first."""

    text: str
    summary: str | None = None


@dataclass(frozen=True)
class Picture:
    """A figure with one or more plots. Markdown leaves it out, so its numbers must also be in a table."""

    content: Markup
    caption: str


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    code: bool = False
    #: Whether it is a difference that remains after Holm's correction.
    marked: bool = False
    #: Whether it holds words, which are aligned to the left, and not a number.
    words: bool = False
    #: The colour of a heat map, from -1 (much worse than the baseline) to 1 (much better).
    shade: float | None = None
    #: In HTML this is shown instead of the text.
    plot: Markup | None = None


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows. A plain text in `rows` is a number."""

    caption: str
    headings: list[str | Cell]
    rows: list[list[str | Cell]]
    #: The field that the columns of a heat map vary, shown above the headings.
    across: str | None = None
    #: Whether it is a heat map: cells of equal width, coloured by their shade.
    heat: bool = False


@dataclass(frozen=True)
class Option:
    """One thing that a reader can choose, and what is shown for it."""

    #: Shown as code.
    label: str
    blocks: list[Block]


@dataclass(frozen=True)
class Choice:
    """Several options, of which the page shows the one that the reader chooses, the first one at the start."""

    #: The name of the choice, unique in the page.
    key: str
    legend: str
    hint: str
    options: list[Option]
    #: What is shown where a reader cannot choose: in Markdown.
    otherwise: list[Block]


Block: TypeAlias = Text | Notes | Code | Picture | Table | Choice


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def cell(value: str | Cell) -> Cell:
    """Turn a plain text into a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def name(method: str) -> Cell:
    """A cell with the name of a method."""
    return Cell(method, code=True, words=True)
