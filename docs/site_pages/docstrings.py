"""Docstrings as Sphinx needs them."""

from __future__ import annotations

import re
from typing import Any

#: Stands for a colon while napoleon looks on.
_HIDDEN = "\N{SYMBOL FOR NULL}"

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


def connect(app: Any) -> None:
    """Call them before or after napoleon, which has the priority 500."""
    app.connect("autodoc-process-docstring", hide_colon, priority=400)
    app.connect("autodoc-process-docstring", show_colon, priority=600)
    app.connect("autodoc-process-docstring", plain_bars, priority=600)
