"""Docstrings as Sphinx needs them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

#: Stands for a colon while napoleon looks on.
_HIDDEN = "\N{SYMBOL FOR NULL}"

#: A name that Sphinx was to shorten, and left as it is inside of a longer type.
_LONG_NAME = re.compile(r"~[a-z.]+\.(?=[A-Z])")

#: Two bars around words, and no code in between.
_BARS = re.compile(r"(?<![`|\w])\|(\w[^|`]*\w)\|(?![`|\w])")


def hide_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading `Where it acts: ...`, the description of an attribute, as `type: description`."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(":", _HIDDEN)


def plain_bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep Sphinx from reading `|gradient x output|`, an absolute value, as the name of a replacement."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[place] = _BARS.sub(r"\\|\1\\|", line)


def show_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo `hide_colon` after napoleon."""
    lines[:] = [line.replace(_HIDDEN, ":") for line in lines]


def no_numbers(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Drop what Python writes about the fields of a named tuple. The docstring of its class describes them."""
    lines[:] = [line for line in lines if not line.startswith("Alias for field number")]


def short_names(app: Any, doctree: nodes.document) -> None:
    """Write `~typing.Literal` as `Literal`."""
    for text in list(doctree.findall(nodes.Text)):
        if _LONG_NAME.search(text):
            text.parent.replace(text, nodes.Text(_LONG_NAME.sub("", text)))


def connect(app: Any) -> None:
    """Call them before or after napoleon, which has the priority 500."""
    app.connect("autodoc-process-docstring", hide_colon, priority=400)
    app.connect("autodoc-process-docstring", show_colon, priority=600)
    app.connect("autodoc-process-docstring", plain_bars, priority=600)
    app.connect("autodoc-process-docstring", no_numbers, priority=600)
    app.connect("doctree-read", short_names)
