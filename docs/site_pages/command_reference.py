"""All commands with their arguments, from the parsers of the command line."""

from __future__ import annotations

import argparse
from functools import partial

from attentiondrop.cli.main import _parser

from .markdown import prose, table

_WIDE = partial(argparse.HelpFormatter, width=88)


def commands() -> str:
    """A section for each command: what it does, its usage, its arguments."""
    (chosen,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(_section(name, parser) for name, parser in chosen.choices.items())


def _section(name: str, parser: argparse.ArgumentParser, level: int = 2) -> str:
    parser.formatter_class = _WIDE
    parser.color = False  # Python 3.14 colours the usage
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    lines = [f"{'#' * level} `attentiondrop {name}`", prose(parser.description or ""), f"```text\n{usage}\n```"]
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    rows = [
        _row(parser, action)
        for action in parser._actions
        if action not in inner and action.help is not argparse.SUPPRESS and "--help" not in action.option_strings
    ]
    if rows:
        lines.append(table(("argument", "meaning"), rows))
    if parser.epilog:
        lines.append(f"```text\n{parser.epilog.strip()}\n```")
    lines += [_section(f"{name} {kind}", one, level + 1) for action in inner for kind, one in action.choices.items()]
    return "\n\n".join(lines)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    formatter = parser._get_formatter()
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    if action.option_strings and action.nargs != 0:
        names += f" `{formatter._format_args(action, formatter._get_default_metavar_for_optional(action))}`"
    return [names, prose(formatter._expand_help(action) if action.help else "")]
