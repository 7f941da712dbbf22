"""The report as one HTML page and as one Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from ... import __version__
from ..analysis.summary import Summary
from . import render_html, render_markdown
from .blocks import Choice, Section
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
        style=Markup(style + _only_the_chosen_option(sections)),
        version=__version__,
    )


def _only_the_chosen_option(sections: Sequence[Section]) -> str:
    """The style that hides the options that are not chosen. CSS cannot count, so each place in the list needs a rule.

    A browser that does not know `:has` shows all options, below one another.
    """
    counts = [len(block.options) for each in sections for block in each.blocks if isinstance(block, Choice)]
    places = [f":nth-of-type({number})" for number in range(1, max(counts, default=0) + 1)]
    return "".join(
        f".choice:has(label{place} > :checked) > .option:not({place}) {{ display: none; }}\n" for place in places
    )


def markdown_page(summary: Summary, sections: Sequence[Section]) -> str:
    """The same text and tables, without the figures."""
    parts = [f"# {render_markdown.escape(heading(summary))}"]
    parts += [render_markdown.escape(text) for text in paragraphs(summary)]
    parts += [written for each in sections if (written := render_markdown.section(each))]
    return "\n\n".join(parts) + "\n"
