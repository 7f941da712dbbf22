"""Parts of pages that are generated stand between two marks, which are comments."""

from __future__ import annotations

import re


def filled(page: str, name: str, content: str, between: str = "\n\n") -> str:
    """The page with `content` between the marks of that name. `between`: what separates it from them."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"expected the marks {begin} and {end} once")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}{between}{content}{between}{end}", page)
