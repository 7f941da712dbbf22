"""Read a report in tests: its tables by caption, its plots, and whether its tags are balanced."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from attentiondrop.experiments.report import write_report

Maker = Callable[..., Path]
_VOID = {"meta", "br", "hr", "wbr", "input"}


class Page(HTMLParser):
    """Every table as lists of texts, by caption; every figure's label; and whether the tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.labels: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self._text = ""
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th", "caption"):
            self._text = ""
        elif tag == "svg" and dict(attrs).get("role") == "img":
            self.labels.append(dict(attrs)["aria-label"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self._rows[-1].append(self._text.strip())
        elif tag == "caption":
            self._caption = self._text
        elif tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        self._text += data

    def plots(self) -> list[str]:
        """The labels of the plots, without the axes of table columns."""
        return [label for label in self.labels if label != "points of accuracy"]

    def table(self, start: str) -> dict[str, list[str]]:
        """First cell -> row, for the table whose caption starts with this text."""
        (rows,) = [rows for caption, rows in self.tables.items() if caption.startswith(start)]
        return {row[0]: row[1:] for row in rows}


def written(folder: Path) -> tuple[Page, str, list[dict[str, str]]]:
    paths = write_report(folder)
    assert (paths.html, paths.markdown, paths.csv) == (
        folder / "report.html",
        folder / "report.md",
        folder / "results.csv",
    )
    rows = list(csv.DictReader(io.StringIO(paths.csv.read_text(encoding="utf-8"))))
    return Page(paths.html.read_text(encoding="utf-8")), paths.markdown.read_text(encoding="utf-8"), rows
