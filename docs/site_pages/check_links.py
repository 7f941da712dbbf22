"""Check that every link within a built site leads to a file and, after `#`, to a place in it.

python docs/site_pages/check_links.py docs/_build/html
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links and places of one file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note `href`, `src` and `id`."""
        for name, value in attrs:
            if value is not None and name in ("href", "src"):
                self.links.append(value)
            elif value is not None and name == "id":
                self.places.add(value)


@cache
def read(path: Path) -> Page:
    """The page in a file."""
    return Page(path.read_text(encoding="utf-8"))


def broken(site: Path) -> list[str]:
    """`FILE: LINK` for each link that leads nowhere. Links to other sites are not looked at."""
    found = []
    for path in sorted(site.rglob("*.html")):
        if "_downloads" in path.parts:  # files as they are, such as stored reports
            continue
        for link in read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.is_file()
            if there and parts.fragment and target.suffix == ".html":
                there = unquote(parts.fragment) in read(target).places
            if not there:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1], "index.html").is_file():
        sys.exit("usage: check_links.py FOLDER, the folder of a built site")
    wrong = broken(Path(sys.argv[1]))
    print("\n".join(wrong) if wrong else "every link within the site leads somewhere; other sites were not looked at")
    sys.exit(bool(wrong))
