"""No text of a study becomes HTML, a link or a heading in `report.md`, checked with a CommonMark parser."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from attentiondrop.experiments.report.blocks import Cell, Code, Notes, Section, Table, Text, name
from attentiondrop.experiments.report.render_markdown import escape, section

READER = MarkdownIt("commonmark").enable("table")

EVIL = [
    "<script>alert(1)</script>",
    "``<b>`",
    "`<b>``<i>`",
    "a ` b <b> ` c <i>",
    "\\`<b>\\`",
    "\\<b>",
    "`a`<b>`c`",
    "```<b>```",
    "x | y | z",
    "`x | y`",
    "a \\| b",
    "`a \\| <b>`",
    "[click](javascript:alert(1))",
    "![picture](http://example.org/x.png)",
    "[a]: http://example.org",
    "[a][b]",
    "<http://example.org>",
    "&lt;b&gt; &amp; &copy;",
    "*bold* **bold** _slanted_ __init__ ~~gone~~",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "---",
    "> quote",
    "line\n# heading\n\n<b>",
    "<!-- hidden",
    "<![CDATA[ hidden",
    "ends with a backslash\\",
]

ALLOWED = {
    "heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "text", "code_inline", "fence",
    "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close", "strong_open", "strong_close",
    "table_open", "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close",
    "th_open", "th_close", "td_open", "td_close",
}  # fmt: skip


def tokens(text: str) -> list:
    found = []
    for token in READER.parse(text):
        found += [token, *(token.children or ())]
    return found


def shown(text: str) -> str:
    """The text that a reader sees, with code as it is written."""
    parts = [token for token in tokens(text) if token.type in ("text", "code_inline", "text_special")]
    return "".join(f"`{part.content}`" if part.type == "code_inline" else part.content for part in parts)


@pytest.mark.parametrize("evil", EVIL)
def test_a_line_is_shown_as_it_is(evil: str) -> None:
    # Markdown drops a space beside a backtick.
    assert re.sub(r"[`\s]", "", shown(escape(evil))) == re.sub(r"[`\s]", "", evil)


@pytest.mark.parametrize("evil", EVIL)
def test_nothing_becomes_markup(evil: str) -> None:
    blocks = [
        Text(evil),
        Text(f"The baseline `{evil}` reaches {evil}."),
        Notes([evil, f"`{evil}`: {evil}"]),
        Code(evil),
        Table(
            evil, ["Method", evil, Cell(evil, words=True)], [[name(evil), evil, Cell(evil, words=True, marked=True)]]
        ),
    ]
    found = tokens(section(Section("key", evil, blocks)))
    assert {token.type for token in found} <= ALLOWED
    assert [token.type for token in found].count("heading_open") == 1
    assert [token.type for token in found].count("td_open") == [token.type for token in found].count("th_open") == 3
    assert [token.type for token in found].count("bullet_list_open") == 1
    assert [token.type for token in found].count("strong_open") == 1


def test_plain_words_stay_readable() -> None:
    text = "`hard(p=0.1,k=5)`: peak_memory_mib +2.00 [-0.48, +4.48], 95 % of 3 (see `a_b`); done! 1.5 - 2"
    assert escape(text) == text
