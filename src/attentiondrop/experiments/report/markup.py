"""SVG and short pieces of HTML by functions: what is no `Markup` is escaped, so no text of a study breaks a page."""

from __future__ import annotations

from typing import TypeAlias

from markupsafe import Markup, escape

__all__ = ["MINUS", "Attribute", "Child", "Markup", "attributes", "code", "escape", "join", "tag"]

MINUS = "\u2212"

Child: TypeAlias = "str | Markup"
Attribute: TypeAlias = "str | int | float | None"

_VOID = frozenset({"meta", "br", "hr", "line", "rect", "circle", "path", "use"})


def code(text: str) -> Markup:
    """A method or a value; a long one may be broken after a `+` or a comma."""
    return tag("code", Markup(str(escape(text)).replace("+", "+<wbr>").replace(",", ",<wbr>")))


def join(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(escape(child) for child in children))


def attributes(**values: Attribute) -> Markup:
    """Those that are not None, each with a space before it. A trailing underscore is dropped, others become hyphens."""
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
    """Coordinates to a hundredth of a pixel: more would only make the file larger."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
