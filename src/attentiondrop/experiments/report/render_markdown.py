"""The report as Markdown, without the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .blocks import Block, Cell, Choice, Code, Notes, Picture, Section, Table, Text, cell

#: Code between single backticks. Two or more backticks mean something else in Markdown and could open another span.
_CODE = re.compile(r"(?<![`\\])(`[^`]+`)(?!`)")
#: Characters that Markdown could read as markup. A backslash before a space, an underscore inside a word and brackets
#: without a link have no meaning there, so they stay as they are.
_ACTIVE = re.compile(r"\\(?=[!-/:-@\[-`{-~]|$)|[`*~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|!(?=\[)")
#: Line starts that Markdown would read as a heading, a list or a rule.
_START = re.compile(r"^(?:#|[-+](?=[\s-]|$)|\d+(?=[.)](?:\s|$)))")


def section(content: Section) -> str:
    """A section with its heading; empty if it has only figures."""
    blocks = [written for each in content.blocks if (written := block(each))]
    return "\n\n".join([f"## {escape(content.title)}", *blocks]) if blocks else ""


def block(content: Block) -> str:
    """One block; a figure is empty, and a choice is what it shows to readers who cannot choose."""
    match content:
        case Text():
            return escape(content.text)
        case Notes():
            return "\n".join(f"- {escape(line)}" for line in content.lines)
        case Code():
            fence = "```"
            while fence in content.text:
                fence += "`"
            return "\n".join([*([f"{content.summary}:", ""] if content.summary else []), fence, content.text, fence])
        case Picture():
            return ""
        case Table():
            return "\n".join([f"**{escape(content.caption)}**", "", *_table(content)])
        case Choice():
            return "\n\n".join(written for each in content.otherwise if (written := block(each)))


def escape(text: str) -> str:
    """The text in one line, escaped so that Markdown sees no HTML and no markup. Code in backticks stays as it is."""
    parts = _CODE.split(" ".join(text.split()))
    written = "".join(part if index % 2 else _plain(part) for index, part in enumerate(parts))
    return _START.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", written)


def _plain(text: str) -> str:
    text = _ACTIVE.sub(lambda found: f"\\{found[0]}", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")


def _table(content: Table) -> list[str]:
    kept = [index for index, each in enumerate(content.headings) if cell(each).plot is None]
    headings = [cell(content.headings[index]) for index in kept]
    if content.across is not None:
        first = " \\ ".join(filter(None, [headings[0].text, content.across]))
        headings[0] = Cell(first)
    rule = [" --- " if index == 0 or each.words else " ---: " for index, each in enumerate(headings)]
    rows = [[cell(row[index]) for index in kept] for row in content.rows]
    return [_line(headings), f"|{'|'.join(rule)}|", *(_line(row) for row in rows)]


def _line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(_cell(each) for each in cells) + " |"


def _cell(content: Cell) -> str:
    text = " ".join(content.text.split())
    # A pipe ends a cell even inside code. A backslash prevents that, unless another one already stands before the pipe.
    whole = content.code and text and "`" not in text and "\\|" not in text
    written = f"`{text}`".replace("|", "\\|") if whole else _in_cell(text)
    return written + (" \\*" if content.marked else "")


def _in_cell(text: str) -> str:
    return _plain(text) if any("|" in code for code in _CODE.findall(text)) else escape(text)
