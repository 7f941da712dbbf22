"""The command `attentiondrop`: reads the arguments, runs one sub-command, prints an error as one line."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from .. import __version__
from ..errors import AttentionDropError, did_you_mean
from . import ablate, bench, certify, compare, evaluate, info, list_recipes, methods, report, show, train, variance
from .extras import MissingExtraError

#: Longer error lines are cut off; they may repeat a long argument.
_LONGEST = 1000

COMMANDS = (compare, train, evaluate, ablate, report, certify, variance, bench, show, list_recipes, methods, info)

#: These store every run. The others begin again.
_CONTINUED = ("compare", "train", "ablate")

#: What `attentiondrop` alone prints.
FIRST = """\
attentiondrop {version}: regularise the attention of Transformers, and measure whether that helps.

What one does first:
  attentiondrop info                       print versions and the device
  attentiondrop show                       draw what each regulariser does to a row of attention
  attentiondrop methods                    list what can be compared; `recipes` lists on what
  attentiondrop compare digits --dry-run   show the runs of a comparison, and how long they take
  attentiondrop compare digits             run them: a table, and a report as a web page

attentiondrop --help lists all commands; attentiondrop COMMAND --help explains one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: a timed row failed its check. 2: the command cannot be carried out, or runs failed. 3: the
    time (`--minutes`) was over before all runs had ended. 130: interrupted.
    """
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(FIRST.format(version=__version__))
        return 0
    _check_command(parser, words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(parser, args, unknown[0])
    try:
        code: int = args.run(args)
        return code
    except KeyboardInterrupt:
        continues = "; the same command continues where it stopped" * (args.command in _CONTINUED)
        print(f"attentiondrop {args.command}: interrupted{continues}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) closed the pipe. Without this, Python prints another error when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AttentionDropError, OSError, MemoryError) as error:
        if args.traceback:
            traceback.print_exc()
        else:
            _complain(args.command, error)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attentiondrop",
        description="Regularise the attention of Transformers, and compare how well that works.",
        epilog="attentiondrop COMMAND --help explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"attentiondrop {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
        subparser.set_defaults(run=command.run)
        subparser.allow_abbrev = False  # `--method` would silently be `--methods`
    return parser


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End with a suggestion if the command is misspelt. (argparse lists all commands, and suggests none.)"""
    given = next((word for word in words if not word.startswith("-")), None)
    names = [_name(command) for command in COMMANDS]
    if given is not None and given not in names:
        hint = did_you_mean(given, names) or "."
        parser.error(f"no such command: {given!r}{hint} There are {', '.join(names)}")


def _refuse(parser: argparse.ArgumentParser, args: argparse.Namespace, word: str) -> NoReturn:
    """End with the usage of the command, and a suggestion. (argparse shows that of the program, and suggests none.)"""
    for chosen in (args.command, getattr(args, "what", None)):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and chosen in action.choices:
                parser = action.choices[chosen]
    options = [option for action in parser._actions for option in action.option_strings]
    parser.error(f"no such argument: {word!r}{did_you_mean(word.partition('=')[0], options)}")


def _name(command: ModuleType) -> str:
    return "recipes" if command is list_recipes else command.__name__.rpartition(".")[2]


def _complain(command: str, error: Exception) -> None:
    """Say in one line what is wrong."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} ..."
    separator = " " if isinstance(error, MissingExtraError) else ": "
    print(f"attentiondrop {command}{separator}{message}", file=sys.stderr)
