"""`--minutes`: a study on a machine that one has for a limited time, such as a job of a cluster."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import bad_argument

#: The exit code if runs are left. A script can give the same command again as long as it returns this.
RUNS_LEFT = 3


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the argument."""
    parser.add_argument(
        "--minutes",
        type=_minutes,
        help="Start no run that would end later than so many minutes from now, going by the runs before it. If runs "
        f"are left, the report shows what is there, and the exit code is {RUNS_LEFT}: the same command goes on.",
    )


def until(args: argparse.Namespace) -> float:
    """When all runs should have ended, as `time.time()` counts."""
    if args.minutes is None:
        return math.inf
    if args.ray is not None:
        raise bad_argument("minutes", "no limit with --ray, which takes all runs at once", args.minutes)
    limit: float = time.time() + 60 * args.minutes
    return limit


def report_in_time(study: Callable[[], object], show: Callable[[Path], int], out: Path) -> int:
    """Do a study and show its report, even if there was no time for all of its runs. Returns the exit code."""
    from ..experiments.runs.pool import OutOfTimeError

    try:
        study()
    except OutOfTimeError as error:
        code = show(out)
        print(error, flush=True)
        return max(code, RUNS_LEFT)
    return show(out)


def _minutes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, received {text!r}")
    return found
