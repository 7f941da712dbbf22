"""Functions for SVG and short pieces of HTML. All text except `Markup` is escaped, so no text can break a page."""

from __future__ import annotations

from typing import TypeAlias

from markupsafe import Markup, escape

__all__ = ["MINUS", "Attribute", "Child", "Markup", "attributes", "code", "escape", "join", "tag"]

MINUS = "\u2212"

Child: TypeAlias = "str | Markup"
Attribute: TypeAlias = "str | int | float | None"

_VOID = frozenset({"meta", "br", "hr", "line", "rect", "circle", "path", "use"})


def code(text: str) -> Markup:
    """A method or a value, as code. Lines may break after a `+` or a comma."""
    return tag("code", Markup(str(escape(text)).replace("+", "+<wbr>").replace(",", ",<wbr>")))


def join(*children: Child) -> Markup:
    """The children, one after the other."""
    return Markup("".join(escape(child) for child in children))


def attributes(**values: Attribute) -> Markup:
    """Attributes that are not None, each after a space. A last underscore is dropped, others become hyphens."""
    return Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _number(value))
        for key, value in values.items()
        if value is not None
    )


def tag(name: str, /, *children: Child, **values: Attribute) -> Markup:
    """An element with its `attributes`.

    >>> tag("td", "a < b", class_="number", aria_label="less")
    Markup('<td class="number" aria-label="less">a &lt; b</td>')
    """
    written = attributes(**values)
    if name in _VOID and not children:
        return Markup(f"<{name}{written}>" if name in ("meta", "br", "hr") else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def _number(value: str | int | float) -> str:
    """Coordinates are rounded to a hundredth of a pixel, to keep the file small."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
