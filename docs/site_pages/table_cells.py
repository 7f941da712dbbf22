"""Mark the cells of tables by the length of their text, so that the style sheet can give sentences enough room."""

from __future__ import annotations

from typing import Any

from docutils import nodes

#: Class of a cell -> it has more characters than this. The longest that fits is taken.
_CLASSES = {"long-text": 80, "some-text": 32}


def mark(app: Any, doctree: nodes.document) -> None:
    """Add the classes to a page that Sphinx has just read."""
    for entry in doctree.findall(nodes.entry):
        length = len(entry.astext())
        entry["classes"] += [name for name, least in _CLASSES.items() if length > least][:1]
