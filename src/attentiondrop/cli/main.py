"""The command `attentiondrop`: reads the arguments, runs one sub-command, prints an error as one line."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from .. import __version__
from ..errors import AttentionDropError
from . import ablate, bench, certify, compare, evaluate, info, methods, report, show, train, variance
from .extras import MissingExtraError

#: Longer error lines are cut off; they may repeat a long argument.
_LONGEST = 1000

COMMANDS = (compare, train, evaluate, ablate, report, certify, variance, bench, show, methods, info)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: a timed row failed its check. 2: the command cannot be carried out, or runs failed. 130: interrupted.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = args.run(args)
        return code
    except KeyboardInterrupt:
        print(
            f"attentiondrop {args.command}: interrupted; the same command continues where it stopped", file=sys.stderr
        )
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
        prog="attentiondrop", description="Regularise the attention distribution, and compare how well that works."
    )
    parser.add_argument("--version", action="version", version=f"attentiondrop {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
        subparser.set_defaults(run=command.run)
    return parser


def _complain(command: str, error: Exception) -> None:
    """Say in one line what is wrong."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} ..."
    separator = " " if isinstance(error, MissingExtraError) else ": "
    print(f"attentiondrop {command}{separator}{message}", file=sys.stderr)
