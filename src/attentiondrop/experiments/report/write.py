"""Write the files of a report into the folder of a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..analysis.collect import summarise
from ..analysis.summary import Summary
from ..files.whole_files import write_text
from ..studies.plan import read_study
from .content import sections
from .page import html_page, markdown_page
from .runs_csv import runs_csv


@dataclass(frozen=True)
class ReportPaths:
    """The paths of the files of a report."""

    html: Path
    markdown: Path
    csv: Path


def write_report(folder: Path, interval: str = "t") -> ReportPaths:
    """Write `report.html`, `report.md` and `results.csv` into the folder of a study, also of an unfinished one.

    `interval` is "t" or "bootstrap", see `attentiondrop.experiments.analysis.intervals`.
    """
    return write_summary(summarise(read_study(folder), interval))


def write_summary(summary: Summary) -> ReportPaths:
    """As `write_report`, for a study that has already been read."""
    content, folder = sections(summary), summary.study.folder
    paths = ReportPaths(folder / "report.html", folder / "report.md", folder / "results.csv")
    write_text(paths.html, html_page(summary, content))
    write_text(paths.markdown, markdown_page(summary, content))
    write_text(paths.csv, runs_csv(summary))
    return paths
