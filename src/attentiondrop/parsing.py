"""From text to spec: `parse(str(spec)) == spec`.

The grammar, in full::

    expression := term { "+" term }
    term       := NAME [ "(" [ argument { "," argument } ] ")" ]
    argument   := NAME "=" value | expression          (expressions only inside compose and oneof)
    value      := NUMBER | WORD | "[" value { "," value } "]" | SCHEDULE "(" [ entry { "," entry } ] ")"
    entry      := value | NAME "=" value               (without names first, in the order of the fields)
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from . import schedules
from .building import build, spec_class
from .errors import ArgumentError, ParseError
from .specs import Compose, OneOf, Spec

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TOKEN = re.compile(rf"\s*(?P<token>{_NUMBER}|[-+]?\w+|'[^']*'|\"[^\"]*\"|[()\[\],=+])")
_NAME = re.compile(r"[A-Za-z_]\w*")
_HYPHENATED = re.compile(r"\s*(?P<name>[A-Za-z_]\w*(?:-\w+)+)")
#: The deepest nesting of brackets: the reader calls itself for each, and Python limits recursion.
_DEEPEST = 50


def parse(text: str) -> Spec:
    """The spec that `text` describes, in the form that `str(spec)` gives.

    >>> parse("hard(p=0.1,k=5)")
    HardMasking(p=0.1, k=5, fill='zero', heads='independent')
    >>> str(parse("blur + consistency(weight=0.2)"))
    'blur(sigma_max=0.5)+consistency(weight=0.2)'
    >>> str(parse("dropkey(p=depth(0.3,0.0))"))
    'dropkey(p=depth(first=0.3,last=0.0))'
    """
    if not isinstance(text, str):
        raise ParseError(f"text: expected a str, received {text!r}")
    reader = _Reader(text)
    spec = _expression(reader)
    if reader.peek() is not None:
        raise reader.error(f"unexpected {reader.peek()!r}")
    return spec


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and fields of one term. The name need not be a spec, and may have hyphens.

    >>> read_call("r-drop(weight=2.0)")
    ('r-drop', {'weight': 2.0})
    """
    name, bracket, rest = text.strip().partition("(")
    reader = _Reader(rest)
    fields = _fields(reader) if bracket else {}
    if reader.peek() is not None:
        raise reader.error(f"unexpected {reader.peek()!r}")
    return name.strip(), fields


def split_terms(text: str) -> list[str]:
    """The parts between the `+` signs that stand outside all brackets.

    >>> split_terms("dropout(p=1e+0) + blur")
    ['dropout(p=1e+0)', 'blur']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "+" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


class _Reader:
    """The tokens of a text, one at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        depth = 0
        for self.position, character in enumerate(text):
            depth += (character in "([") - (character in ")]")
            if depth > _DEEPEST:
                raise self.error(f"expected at most {_DEEPEST} brackets in one another")
        self.position = 0

    def _match(self) -> tuple[str | None, int]:
        found = _TOKEN.match(self.text, self.position)
        if found is None:
            if self.text[self.position :].strip():
                raise self.error("unreadable characters")
            return None, len(self.text)
        token = found["token"]
        # "+blur" joins a term, "+0.5" is a number: a "+" before a name is a token of its own.
        if token[0] == "+" and len(token) > 1 and _NAME.fullmatch(token[1:]):
            return "+", found.end() - len(token) + 1
        return token, found.end()

    def peek(self) -> str | None:
        return self._match()[0]

    def take(self, expected: str | None = None) -> str:
        token, end = self._match()
        if token is None or (expected is not None and token != expected):
            wanted = repr(expected) if expected else "a name or value"
            raise self.error(f"expected {wanted}, found {'the end' if token is None else repr(token)}")
        self.position = end
        return token

    def error(self, reason: str) -> ParseError:
        return ParseError(f"cannot read spec {self.text!r} at position {self.position}: {reason}")


def _expression(reader: _Reader) -> Spec:
    terms = [_term(reader)]
    while reader.peek() == "+":
        reader.take("+")
        terms.append(_term(reader))
    return _built(reader, Compose, {"parts": terms}) if len(terms) > 1 else terms[0]


def _term(reader: _Reader) -> Spec:
    start = reader.position
    name = reader.take()
    if not _NAME.fullmatch(name):
        raise reader.error(f"expected the name of a spec, found {name!r}")
    hyphenated = _HYPHENATED.match(reader.text, start)
    name = hyphenated["name"] if hyphenated else name  # no spec has such a name; the error must show all of it
    try:
        cls = spec_class(name)
    except ArgumentError as error:
        raise reader.error(str(error)) from None
    fields: dict[str, Any] = {}
    parts: list[Spec] = []
    if reader.peek() == "(":
        reader.take("(")
        while reader.peek() != ")":
            _argument(reader, cls, fields, parts)
            if reader.peek() != ")":
                reader.take(",")
        reader.take(")")
    if parts:
        fields["parts"] = parts
    return _built(reader, cls, fields)


def _argument(reader: _Reader, cls: type[Spec], fields: dict[str, Any], parts: list[Spec]) -> None:
    start = reader.position
    word = reader.take()
    if reader.peek() != "=":
        if not issubclass(cls, (Compose, OneOf)):
            first = dataclasses.fields(cls)[0].name
            raise reader.error(f"expected field=value in {cls.name}(...), such as {first}={word}, found {word!r}")
        reader.position = start
        parts.append(_expression(reader))
        return
    reader.take("=")
    if word in fields:
        raise reader.error(f"field {word!r} is given twice")
    fields[word] = _value(reader)


def _value(reader: _Reader) -> Any:
    token = reader.take()
    if token == "[":
        values = [_value(reader)]
        while reader.peek() == ",":
            reader.take(",")
            values.append(_value(reader))
        reader.take("]")
        return values
    if token[0] in "'\"":
        return token[1:-1]
    if reader.peek() == "(":
        return _schedule(reader, token)
    if token == "None":
        return None
    for kind in (int, float):
        # "-inf" is a value of `fill`, so it stays a word. No field takes an infinite number.
        if token.lstrip("+-").lower() in ("inf", "nan", "infinity"):
            break
        try:
            return kind(token)
        except ValueError:
            continue
    return token


def _schedule(reader: _Reader, name: str) -> Any:
    reader.take("(")
    values: list[Any] = []
    while reader.peek() != ")" and not _names_a_field(reader):
        values.append(_value(reader))
        if reader.peek() != ")":
            reader.take(",")
    fields = _fields(reader)
    try:
        return schedules.build(name, fields, values)
    except ArgumentError as error:
        raise reader.error(str(error)) from None


def _names_a_field(reader: _Reader) -> bool:
    """Whether the next tokens are `NAME =`."""
    start = reader.position
    reader.take()
    found = reader.peek() == "="
    reader.position = start
    return found


def _fields(reader: _Reader) -> dict[str, Any]:
    """The `field=value` pairs; reads the closing bracket, too."""
    fields: dict[str, Any] = {}
    while reader.peek() != ")":
        field = reader.take()
        reader.take("=")
        if field in fields:
            raise reader.error(f"field {field!r} is given twice")
        fields[field] = _value(reader)
        if reader.peek() != ")":
            reader.take(",")
    reader.take(")")
    return fields


def _built(reader: _Reader, cls: type[Spec], fields: dict[str, Any]) -> Spec:
    try:
        return build(cls, fields)
    except ArgumentError as error:
        raise ParseError(f"cannot read spec {reader.text!r}: {error}") from error
