"""Markdown from plain text: tables, and characters that Markdown would read as something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: Outside of code. A backquote stays, because our texts mark code with it.
_SPECIAL = re.compile(r"([\\*_<>\[\]])")


def prose(text: str) -> str:
    """Plain text in one line, in which only backquotes mean something."""
    text = re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", " ".join(text.split()))  # an option is code
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def code(value: object) -> str:
    """A value as code."""
    return f"`{value}`"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
