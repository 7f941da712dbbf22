"""Docstrings as Sphinx needs them."""

from __future__ import annotations

from typing import Any

#: Stands for a colon while napoleon looks on.
_HIDDEN = "\N{SYMBOL FOR NULL}"


def hide_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading `Where it acts: ...`, the description of an attribute, as `type: description`."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(":", _HIDDEN)


def show_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo `hide_colon` after napoleon."""
    lines[:] = [line.replace(_HIDDEN, ":") for line in lines]


def connect(app: Any) -> None:
    """Call them before and after napoleon, which has the priority 500."""
    app.connect("autodoc-process-docstring", hide_colon, priority=400)
    app.connect("autodoc-process-docstring", show_colon, priority=600)
