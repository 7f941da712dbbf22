"""The report of a study: one self-contained HTML page, the same tables as Markdown, a CSV file with a row per run."""

from .write import ReportPaths, write_report, write_summary

__all__ = ["ReportPaths", "write_report", "write_summary"]
