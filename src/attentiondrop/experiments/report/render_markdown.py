"""Blocks as Markdown, without the pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .blocks import Block, Cell, Code, Notes, Picture, Section, Table, Text, cell

_CODE = re.compile(r"(`[^`]+`)")


def section(content: Section) -> str:
    """A section with its heading; empty if pictures are all it has."""
    blocks = [written for each in content.blocks if (written := block(each))]
    return "\n\n".join([f"## {escape(content.title)}", *blocks]) if blocks else ""


def block(content: Block) -> str:
    """Any block."""
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


def escape(text: str) -> str:
    """Without anything that Markdown would take for HTML; `code` in backticks stays as it is."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") and len(part) > 1 else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
    text = f"`{content.text}`" if content.code and content.text else content.text
    return escape(text).replace("|", "\\|") + (" \\*" if content.marked else "")
