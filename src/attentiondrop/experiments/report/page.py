"""The report as one HTML page and as one Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from ... import __version__
from ..analysis.summary import Summary
from . import render_html, render_markdown
from .blocks import Section
from .markup import Markup
from .words import facts, heading, paragraphs


def html_page(summary: Summary, sections: Sequence[Section]) -> str:
    """A self-contained page: it loads no script, font or image."""
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return render_html.page(
        heading=heading(summary),
        facts=facts(summary),
        paragraphs=paragraphs(summary),
        sections=sections,
        style=Markup(style),
        version=__version__,
    )


def markdown_page(summary: Summary, sections: Sequence[Section]) -> str:
    """The same text and tables, without the figures."""
    parts = [f"# {render_markdown.escape(heading(summary))}"]
    parts += [render_markdown.escape(text) for text in paragraphs(summary)]
    parts += [written for each in sections if (written := render_markdown.section(each))]
    return "\n\n".join(parts) + "\n"
