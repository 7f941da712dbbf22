"""Blocks as HTML."""

from __future__ import annotations

import re

from .blocks import Block, Cell, Code, Notes, Picture, Section, Table, Text, cell
from .markup import MINUS, Markup, code, escape, join, tag

#: The legend of every heat map.
HEAT_KEY = "Blue is above the baseline, orange below; the stronger, the further"

_CODE = re.compile(r"`([^`]+)`")


def section(content: Section) -> Markup:
    """A section with its heading."""
    heading = tag("h2", content.title, id=f"{content.key}-title")
    blocks = [block(each) for each in content.blocks]
    return tag("section", heading, *blocks, id=content.key, aria_labelledby=f"{content.key}-title")


def block(content: Block) -> Markup:
    """Any block."""
    match content:
        case Text():
            return tag("p", inline(content.text))
        case Notes():
            return tag("ul", *(tag("li", inline(line)) for line in content.lines), class_="notes")
        case Code():
            listing = tag("pre", tag("code", content.text), tabindex=0)
            return listing if content.summary is None else tag("details", tag("summary", content.summary), listing)
        case Picture():
            return tag("figure", content.content, tag("figcaption", inline(content.caption)))
        case Table():
            return table(content)


def inline(text: str) -> Markup:
    """Escaped, with `code` in backticks; a per cent sign stays with its number."""
    parts = _CODE.split(text)
    written = [code(part) if index % 2 else escape(part.replace(" %", "\u00a0%")) for index, part in enumerate(parts)]
    return join(*written)


def table(content: Table) -> Markup:
    """A table in a container of its own that scrolls where the page is too narrow for it."""
    headings = [cell(each) for each in content.headings]
    head = [tag("tr", *(_heading(each, index) for index, each in enumerate(headings)))]
    if content.across is not None:
        over = tag("th", content.across, colspan=len(headings) - 1, scope="colgroup", class_="across")
        head.insert(0, tag("tr", tag("td"), over))
    body = [tag("tr", *(_cell(cell(each), index) for index, each in enumerate(row))) for row in content.rows]
    written = tag(
        "table",
        tag("caption", tag("span", inline(content.caption + (f". {HEAT_KEY}" if content.heat else "")))),
        tag("thead", *head),
        tag("tbody", *body),
        class_="heat" if content.heat else None,
    )
    label = content.caption.replace("`", "")
    return tag("div", written, class_="scroll", role="region", aria_label=label, tabindex=0)


def _heading(content: Cell, index: int) -> Markup:
    inside = content.plot or inline(content.text)
    return tag("th", inside, scope="col", class_="words" if index == 0 or content.words else None)


def _cell(content: Cell, index: int) -> Markup:
    inside = _inside(content)
    if index == 0:
        return tag("th", inside, scope="row")
    shade, style = None, None
    if content.shade is not None:
        shade = "above" if content.shade >= 0 else "below"
        style = f"--strength:{min(1.0, abs(content.shade)):.3f}"
    classes = " ".join(filter(None, ["words" if content.words else None, shade]))
    return tag("td", inside, class_=classes or None, style=style)


def _inside(content: Cell) -> Markup:
    if content.plot is not None:
        return content.plot
    if content.code:
        return code(content.text)
    inside = inline(content.text.replace("-", MINUS) if _is_number(content.text) else content.text)
    if content.marked:
        return join(tag("strong", inside), tag("span", " *", class_="mark", title="remains after Holm's correction"))
    return inside


def _is_number(text: str) -> bool:
    """Numbers and intervals get a minus sign, words keep their hyphens."""
    return any(character.isdigit() for character in text) and not any(character.isalpha() for character in text)
