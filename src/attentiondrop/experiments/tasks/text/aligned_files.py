"""Pairs of sentences from two files: line i of one file is the translation of line i of the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .line_files import TextFileError, read_lines


class Pairs(NamedTuple):
    """Sentences of two languages. Both have the same number."""

    source: Sequence[str]
    target: Sequence[str]


def read_aligned(source: str | Path, target: str | Path) -> Pairs:
    """Read two files, plain or gzipped, of one sentence in each line. Unequal numbers of lines are an error."""
    lines = read_lines(source), read_lines(target)
    few, many = sorted((len(lines[0]), len(lines[1])))
    if few != many:
        longer, shorter = (source, target) if len(lines[0]) > len(lines[1]) else (target, source)
        raise TextFileError(
            f"{longer}, line {few + 1}: expected its translation in {shorter}, which has only {few} lines; the files "
            f"have {many} and {few}"
        )
    return Pairs(*lines)
