"""HTML and SVG by small functions: what is not marked up already is escaped, so no text of a study can break a page."""

from __future__ import annotations

import html
from typing import TypeAlias

MINUS = "\u2212"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup"
Attribute: TypeAlias = "str | int | float | None"

_VOID = frozenset({"meta", "br", "hr", "line", "rect", "circle", "path", "use"})


def escape(text: Child) -> Markup:
    """Text as HTML; markup stays what it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def code(text: str) -> Markup:
    """A method or a value; a long one may be broken after a `+` or a comma."""
    return tag("code", Markup(escape(text).replace("+", "+<wbr>").replace(",", ",<wbr>")))


def join(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(escape(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element. A trailing underscore is dropped, others become hyphens; an attribute that is None is left out.

    >>> tag("td", "a < b", class_="number", aria_label="less")
    '<td class="number" aria-label="less">a &lt; b</td>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}>" if name in ("meta", "br", "hr") else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def _number(value: str | int | float) -> str:
    """Coordinates to a hundredth of a pixel: more would only make the file larger."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
