"""`attentiondrop report`: write the page, the tables and the CSV file of a comparison or an ablation again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import require

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "report",
        help="Write the report of a comparison or an ablation again.",
        description="Write report.html, report.md and results.csv from the runs in a folder of `attentiondrop compare` "
        "or `ablate`, which need not be finished. Nothing is trained.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="The folder that was given as --out.")
    parser.add_argument(
        "--interval",
        choices=("t", "bootstrap"),
        default="t",
        help="The intervals of paired differences; with few seeds, bootstrap is too narrow. Default: %(default)s.",
    )
    parser.add_argument(
        "--baseline", metavar="METHOD", help="The method that differences are to. Default: the first of the comparison."
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the files, and say where they are."""
    require(("scipy", "jinja2"), extra="experiments")
    from ..experiments.analysis.collect import summarise
    from ..experiments.analysis.remarks import origin_remarks
    from ..experiments.report import write_summary
    from ..experiments.studies.plan import read_study

    summary = summarise(read_study(args.folder), args.interval, args.baseline)
    paths = write_summary(summary)
    for line in origin_remarks(summary):
        print(line)
    print(f"report: {paths.html}")
    print(f"tables: {paths.markdown}")
    print(f"runs:   {paths.csv}")
    return 0
