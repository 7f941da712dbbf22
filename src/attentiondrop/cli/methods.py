"""`attentiondrop methods`: every method that `compare` knows, without loading any framework."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..experiments.methods.catalogue import Listed

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WIDTH, _COLUMN = 110, 38


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "methods",
        help="List all methods and groups of methods.",
        description="List every method that compare knows, by groups. Groups can be given to compare --methods, too. "
        "With the names of methods or groups, show their fields and defaults, what they compute, their reference, and "
        "the settings that tuning tries, the published default first.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="Show all about these methods or groups; `all` is a group."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print it all."""
    from ..experiments.methods.catalogue import catalogue

    found = catalogue(args.names)
    if args.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return 0
    if not args.names:
        _print_groups(found)
        return 0
    for one in found:
        print(f"\n{one.text}")
        print(f"  {one.summary}")
        for fields in one.fields:
            print(f"  fields of {fields}")
        print(f"  groups: {', '.join(one.groups) or 'none, it is a part of other methods'}")
        if one.formula:
            print(f"  {one.formula}")
        if one.reference:
            print(f"  {one.reference}")
        print(f"  tuned over {len(one.settings)}: {', '.join(one.settings)}" if one.settings else "  not tuned")
    return 0


def _print_groups(found: list[Listed]) -> None:
    """One line or two for each method, under its group."""
    from ..experiments.methods.groups import ALL, groups

    listed = {one.name: one.summary for one in found}
    for group, members in groups().items():
        if group == ALL:
            continue
        print(f"{group}: {len(members)} methods")
        first: dict[str, str] = {}
        for name in members:
            label, text = f"  {name}", listed[name]
            if first.setdefault(text, name) != name:
                text = f"As {first[text]}, with these settings."
            summary = textwrap.wrap(text, _WIDTH - _COLUMN)
            if len(label) >= _COLUMN:
                print(label)
                label = ""
            print(f"{label:<{_COLUMN}}{summary[0]}")
            for line in summary[1:]:
                print(" " * _COLUMN + line)
        print()
    print(
        "attentiondrop methods NAME shows all about a method or a group: what it computes, its reference, its settings."
    )
    print("attentiondrop compare digits --methods none NAME ... compares methods or groups; `all` is every method.")
