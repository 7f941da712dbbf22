"""Replace a line `<!-- generated: NAME -->` in a page by what a function of this package writes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attentiondrop.experiments.methods.groups import groups

from . import benchmark_pages, command_reference, method_pictures, recipe_reference

DOCS = Path(__file__).parents[1]


def other_pages(index: str = "index.md", patterns: Iterable[str] = ("*.md",)) -> str:
    """A list for the pages that `index` does not name, so that a new page is found at once."""
    named = (DOCS / index).read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for pattern in patterns for path in sorted(DOCS.glob(pattern))]
    found = [posixpath.relpath(page, posixpath.dirname(index)).removesuffix(".md") for page in pages if page != index]
    new = [name for name in found if not re.search(rf"^(.*<)?{re.escape(name)}>?$", named, re.MULTILINE)]
    return "\n".join(["```{toctree}", ":caption: More", ":hidden:", "", *new, "```"]) if new else ""


PARTS: dict[str, Callable[[], str]] = {
    "recipe settings": recipe_reference.settings,
    "shipped recipes": recipe_reference.recipes,
    "other pages": other_pages,
    "other evidence": lambda: other_pages(
        "evidence/index.md", ("evidence/*.md", "results/*/README.md", "results/*/report.md")
    ),
    "commands": command_reference.commands,
    "pictures of hard and blur": lambda: method_pictures.drawn("hard", "blur"),
} | {f"pictures of {group}": method_pictures.of_group(group) for group in groups()}
#: `[speed.md](speed.md)`, which reads well in a file.
FILE_NAME = re.compile(r"\[[\w./-]+\.md\]\(([\w./-]+\.md)\)")
MARK = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)


def insert(app: Any, docname: str, source: list[str]) -> None:
    """Change the text of a page that Sphinx has just read."""
    # Without a text, a link shows the title of its page.
    source[0] = FILE_NAME.sub(r"[](\1)", benchmark_pages.relinked(filled(source[0])))


def filled(text: str) -> str:
    """The page with its generated parts. An unknown name is an error, so that no mark is left over."""
    return MARK.sub(lambda found: PARTS[found[1]](), text)
