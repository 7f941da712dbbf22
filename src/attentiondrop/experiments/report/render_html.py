"""The report as HTML: Jinja fills the pages in `templates/`, and escapes every text of a study."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .blocks import Block, Cell, cell
from .markup import MINUS, Markup, attributes, code, escape, join

#: The legend of every heat map.
HEAT_KEY = "Blue is better than the baseline, orange worse; the stronger, the further"

_CODE = re.compile(r"`([^`]+)`")


def page(**content: Any) -> str:
    """The whole page, from what `templates/page.html` names."""
    return _templates().get_template("page.html").render(content)


def block(content: Block) -> str:
    """A block by itself."""
    blocks: Any = _templates().get_template("blocks.html").module
    return str(blocks.block(content))


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("attentiondrop.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "inline": inline,
        "code": code,
        "cell": cell,
        "number": number,
        "look": look,
        "kind": lambda content: type(content).__name__,
    }
    found.globals["heat_key"] = HEAT_KEY
    return found


def inline(text: str) -> Markup:
    """Escaped, with `code` in backticks; a per cent sign stays with its number."""
    parts = _CODE.split(text)
    written = [code(part) if index % 2 else escape(part.replace(" %", "\u00a0%")) for index, part in enumerate(parts)]
    return join(*written)


def number(text: str) -> str:
    """Numbers and intervals get a minus sign, words keep their hyphens."""
    figures = any(character.isdigit() for character in text) and not any(character.isalpha() for character in text)
    return text.replace("-", MINUS) if figures else text


def look(content: Cell) -> Markup:
    """The attributes of a cell: what is in words, and the colour of a heat map."""
    classes, style = ["words"] if content.words else [], None
    if content.shade is not None:
        classes.append("above" if content.shade >= 0 else "below")
        style = f"--strength:{min(1.0, abs(content.shade)):.3f}"
    return attributes(class_=" ".join(classes) or None, style=style)
