"""The report as HTML: Jinja fills the templates in `templates/` and escapes all text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .blocks import Block, Cell, cell
from .markup import MINUS, Markup, attributes, code, escape, join

#: The legend of every heat map.
HEAT_KEY = "Blue is better than the baseline, orange is worse; a stronger colour is a larger difference"

_CODE = re.compile(r"`([^`]+)`")


def page(**content: Any) -> str:
    """The whole page. `content` has the names that `templates/page.html` uses."""
    return _templates().get_template("page.html").render(content)


def block(content: Block) -> str:
    """A single block."""
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
    """Escaped text. Parts in backticks become code, and a per cent sign stays on the line of its number."""
    parts = _CODE.split(text)
    written = [code(part) if index % 2 else escape(part.replace(" %", "\u00a0%")) for index, part in enumerate(parts)]
    return join(*written)


def number(text: str) -> str:
    """Numbers and intervals get a minus sign; words keep their hyphens."""
    figures = any(character.isdigit() for character in text) and not any(character.isalpha() for character in text)
    return text.replace("-", MINUS) if figures else text


def look(content: Cell) -> Markup:
    """The HTML attributes of a cell: whether it holds words, and its colour in a heat map."""
    classes, style = ["words"] if content.words else [], None
    if content.shade is not None:
        classes.append("above" if content.shade >= 0 else "below")
        style = f"--strength:{min(1.0, abs(content.shade)):.3f}"
    return attributes(class_=" ".join(classes) or None, style=style)
