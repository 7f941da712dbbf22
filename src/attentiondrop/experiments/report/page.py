"""The report as one HTML page and as one Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from ... import __version__
from ..analysis.summary import Summary
from . import render_html, render_markdown
from .blocks import Section
from .markup import Markup, join, tag
from .words import facts, heading, paragraphs


def html_page(summary: Summary, sections: Sequence[Section]) -> str:
    """A page that loads nothing else: no script, no font, no picture from elsewhere."""
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", heading(summary)),
        tag("style", Markup(style)),
    )
    lead, *rest = paragraphs(summary)
    top = tag(
        "header",
        tag("p", "attentiondrop report", class_="eyebrow"),
        tag("h1", heading(summary)),
        tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in facts(summary)), class_="facts"),
        tag("p", render_html.inline(lead), class_="lead"),
        *(tag("p", render_html.inline(text)) for text in rest),
    )
    links = [tag("li", tag("a", each.title, href=f"#{each.key}")) for each in sections]
    contents = tag("nav", tag("ul", *links), aria_label="Contents")
    body = tag("main", *(render_html.section(each) for each in sections))
    foot = tag("footer", tag("p", f"Written by attentiondrop {__version__}."))
    page = tag("html", head, tag("body", join(top, contents, body, foot)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def markdown_page(summary: Summary, sections: Sequence[Section]) -> str:
    """The same tables, without the pictures."""
    parts = [f"# {render_markdown.escape(heading(summary))}"]
    parts += [render_markdown.escape(text) for text in paragraphs(summary)]
    parts += [written for each in sections if (written := render_markdown.section(each))]
    return "\n\n".join(parts) + "\n"
