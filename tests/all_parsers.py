"""Every parser of the command line, for tests that look at all of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all parsers of its sub-commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from all_parsers(below)
