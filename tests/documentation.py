"""Runs the Python blocks of a page as they stand there.

A block without a language that follows a Python block is what that block prints. If it begins with the name of an
error, it is the error that the block raises. `...` stands for any text.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r"(\w+Error): (.*)", re.DOTALL)


class Block(NamedTuple):
    """A Python block, the line of the page where it begins, and what the page says comes out of it."""

    code: str
    line: int
    result: str | None


def python_blocks(page: str) -> list[Block]:
    """The Python blocks of a page below `docs`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    blocks = []
    for fence, following in itertools.zip_longest(found, found[1:]):
        if fence[1] == "python":
            told = following is not None and not following[1] and text[fence.end() : following.start()].isspace()
            line = text[: fence.start()].count("\n") + 2
            blocks.append(Block(fence[2], line, following[2] if told and following else None))
    return blocks


def run_page(page: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run all blocks in order, as one program, and check what they print or raise. Returns the names they define."""
    names = {} if names is None else names
    for block in python_blocks(page):
        _run(block, page, names)
    return names


def run_block(page: str, number: int, names: dict[str, Any]) -> None:
    """Run one block, for pages whose blocks are not one program."""
    _run(python_blocks(page)[number], page, names)


def _run(block: Block, page: str, names: dict[str, Any]) -> None:
    where = f"{page}:{block.line}"
    # Lets tracebacks, and TensorFlow's AutoGraph, read the source.
    linecache.cache[where] = (len(block.code), None, block.code.splitlines(keepends=True), where)
    code = compile(block.code, where, "exec")
    raises = _ERROR.fullmatch(block.result.strip()) if block.result else None
    output = io.StringIO()
    if raises is not None:
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared below
            exec(code, names)
        assert raised.type.__name__ == raises[1], where
        _compare(str(raised.value), raises[2], where)
        return
    with contextlib.redirect_stdout(output):
        exec(code, names)
    if block.result is not None:
        _compare(output.getvalue(), block.result, where)


def _compare(found: str, expected: str, where: str) -> None:
    found, expected = " ".join(found.split()), " ".join(expected.split())
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    assert re.fullmatch(pattern, found), f"{where}: the page says\n{expected}\nand this came\n{found}"
