"""How much data and how large a model, and what each method is, in a line."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.summary import Summary
from ..methods.catalogue import described, parts_of
from ..runs.store import Result
from .blocks import Block, Cell, Section, Table, name


def sizes(summary: Summary) -> Section | None:
    """The section; None without a comparison."""
    if not summary.rows:
        return None
    results = [each.result for row in summary.rows for each in row.outcomes if each.result is not None]
    blocks: list[Block] = []
    if rows := _rows(results):
        headings: list[str | Cell] = ["What", "Number"]
        blocks.append(Table("Sizes, of finished runs", headings, rows))
    blocks.append(_glossary(summary))
    return Section("sizes", "Sizes and methods", blocks)


def _rows(results: Sequence[Result]) -> list[list[str | Cell]]:
    found: dict[str, set[int]] = {}
    for result in results:
        for part, count in (result.counts or {}).items():
            found.setdefault(f"{part} examples", set()).add(count)
        for what, number in (("parameters", result.parameters), ("training steps", result.steps)):
            if number is not None:
                found.setdefault(what, set()).add(number)
    return [[Cell(what, words=True), _range(numbers)] for what, numbers in found.items()]


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _glossary(summary: Summary) -> Table:
    methods = [row.entry.method for row in summary.rows if row.entry.method is not None]
    used = dict.fromkeys(part for method in methods for part in parts_of(method))
    body: list[list[str | Cell]] = []
    for each in used:
        perturbs, formula, reference = described(each)
        body.append([name(each), *(Cell(text, words=True) for text in (perturbs, formula, reference))])
    headings: list[str | Cell] = [
        "Part of a method",
        *(Cell(x, words=True) for x in ("Perturbs", "What it does", "From")),
    ]
    return Table("What each part of a method does; S are the logits of attention, A its weights", headings, body)
