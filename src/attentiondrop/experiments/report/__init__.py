"""The report of a study: one HTML page that needs nothing else, the same tables as Markdown, one CSV row a run."""

from .write import ReportPaths, write_report, write_summary

__all__ = ["ReportPaths", "write_report", "write_summary"]
