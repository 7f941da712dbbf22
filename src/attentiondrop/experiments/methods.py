"""From the text of a method to what it does to the model: the one place that knows every method.

A method is `none`, `dropout(p=0.1)` (activations), any attention spec that `attentiondrop.parse` reads, or dropout and
specs joined with `+`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ArgumentError, ParseError
from ..parsing import parse
from ..specs import REGISTRY, Compose, Consistency, Spec
from ..validation import number

#: What a comparison runs when nobody says otherwise.
DEFAULT_METHODS = ("none", "dropout", "hard", "blur")

_DROPOUT = re.compile(r"dropout\s*(?:\(\s*(?:p\s*=\s*(?P<p>[^,()]*?))?\s*\))?")
_SLUG_LENGTH = 100


@dataclass(frozen=True)
class Method:
    """One way of regularising: rates for the model's own dropout, and a spec to attach to its attention.

    >>> read_method("hard+dropout").text
    'dropout(p=0.1)+hard(p=0.1,k=5)'
    """

    dropout: float | None = None
    spec: Spec | None = None

    @property
    def text(self) -> str:
        """The canonical text; equal methods have equal texts, and `read_method` reads it back."""
        parts = [] if self.dropout is None else [f"dropout(p={self.dropout!r})"]
        if self.spec is not None:
            parts.append(str(self.spec))
        return "+".join(parts) or "none"

    @property
    def slug(self) -> str:
        """The text as a folder name that needs no quoting; a nested or long text gets a checksum to stay unique."""
        text = self.text
        slug = re.sub(r"[^\w.=+-]+", "_", text.replace(")", "")).strip("_")
        nested = re.search(r"\([^)]*\(", text) is not None
        if nested or len(slug) > _SLUG_LENGTH:
            slug = f"{slug[:_SLUG_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return slug


def read_methods(texts: Iterable[str]) -> list[Method]:
    """The methods of a comparison, in order; one that is given twice is an error."""
    methods: list[Method] = []
    for text in texts:
        method = read_method(text)
        if method in methods:
            raise ArgumentError(f"method {text!r} is given twice: it means {method.text}")
        methods.append(method)
    if not methods:
        raise ArgumentError(f"expected at least one method: {_choices()}")
    return methods


def read_method(text: str) -> Method:
    """The method that `text` describes, or an error that says what there is."""
    parts = [part.strip() for part in _split(text)]
    for part in parts:
        name = re.split(r"[\s(]", part, maxsplit=1)[0]
        if name not in ("none", "dropout", *REGISTRY):
            raise ParseError(f"unknown method {name!r} in {text!r}: expected {_choices()}")
        if name == "none" and part != name:
            raise ParseError(f"method {text!r}: 'none' takes no arguments")
    if "none" in parts and len(parts) > 1:
        raise ParseError(f"method {text!r}: 'none' cannot be joined with another method")
    if parts == ["none"]:
        return Method()
    rates = [_dropout_rate(part, text) for part in parts if _is_dropout(part)]
    if len(rates) > 1:
        raise ParseError(f"method {text!r}: dropout is given twice")
    rest = [part for part in parts if not _is_dropout(part)]
    return Method(dropout=rates[0] if rates else None, spec=_read_spec(rest, text) if rest else None)


def _read_spec(parts: Sequence[str], text: str) -> Spec:
    spec = parse("+".join(parts))
    if any(isinstance(leaf, Consistency) for leaf in spec.leaves()):
        raise ArgumentError(f"method {text!r}: comparisons cannot train with a consistency loss yet, leave it out")
    return spec


def _split(text: str) -> list[str]:
    """The parts between the `+` signs that stand outside all brackets (`p=1e+0` has one inside)."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "+" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _is_dropout(part: str) -> bool:
    return re.match(r"dropout\b", part) is not None


def _dropout_rate(part: str, text: str) -> float:
    found = _DROPOUT.fullmatch(part)
    if found is None:
        raise ParseError(f"method {text!r}: expected dropout(p=0.1), found {part!r}")
    if found["p"] is None:
        return 0.1
    try:
        return number("p", float(found["p"]), 0.0, 1.0)
    except ValueError as error:
        reason = error if isinstance(error, ArgumentError) else f"p: expected a number, received {found['p']!r}"
        raise ParseError(f"method {text!r}: {reason}") from None


def _choices() -> str:
    specs = [name for name, cls in REGISTRY.items() if not issubclass(cls, (Compose, Consistency))]
    return "none, dropout, or a spec (" + ", ".join(specs) + "), joined with '+'"
