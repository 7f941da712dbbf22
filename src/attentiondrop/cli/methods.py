"""`attentiondrop methods`: every method that `compare` knows, without loading any framework."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "methods",
        help="List all methods and groups of methods.",
        description="List every method that compare knows: its fields and defaults, the settings that tuning tries "
        "(the published default first), and its reference. Groups can be given to compare --methods.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="List only these methods or groups. Default: all.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print it all."""
    from ..experiments.methods.catalogue import catalogue
    from ..experiments.methods.groups import groups

    found = catalogue(args.names)
    if args.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return 0
    if not args.names:
        print("groups:")
        for name, members in groups().items():
            print(f"  {name:<10} {len(members)} methods")
    for one in found:
        print(f"\n{one.text}")
        print(f"  {one.summary}")
        print(f"  groups: {', '.join(one.groups)}")
        if one.formula:
            print(f"  {one.formula}")
        if one.reference:
            print(f"  {one.reference}")
        print(f"  tuned over {len(one.settings)}: {', '.join(one.settings)}" if one.settings else "  not tuned")
    return 0
