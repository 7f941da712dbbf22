"""`attentiondrop recipes`: the recipes that come with the library, or all settings of one of them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import bad_argument
from .extras import require

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WIDTH = 100
#: How the names of recipes begin that generate their data or find it in scikit-learn, and those of our studies.
_NO_FILES, _STUDIES = ("digits", "toy-"), "evidence/"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "recipes",
        help="List the recipes, or all settings of one.",
        description="List the recipes that come with the library: their data, what they need, and their sizes. With "
        "the name of one, print all its settings as YAML; a file with only the settings that you change is a recipe "
        "of your own, see `extends` in the documentation.",
    )
    parser.add_argument("recipe", nargs="?", help="Print all settings of this recipe, or of this .yaml file.")
    parser.add_argument("--size", help="Print the settings of this size. Default: what the recipe says.")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the list, or one recipe."""
    require(["yaml"], extra="experiments")
    if args.recipe is not None:
        return _print_one(args.recipe, args.size)
    if args.size is not None:
        raise bad_argument("recipe", "the name of a recipe, since --size is given", None)
    from ..experiments.config.recipe_files import shipped

    names = shipped()
    own = [name for name in names if name.startswith(_NO_FILES)]
    studies = [name for name in names if name.startswith(_STUDIES)]
    _print_part("These need no files:", own)
    _print_part("These need data of yours:", [name for name in names if name not in own + studies])
    _print_part("These are the studies of docs/evidence/protocol.md; they need data, and a GPU:", studies)
    print("attentiondrop recipes NAME prints all settings; attentiondrop compare NAME --dry-run shows its runs.")
    return 0


def _print_part(heading: str, names: Sequence[str]) -> None:
    from ..experiments.config.recipe_files import described

    print(f"{heading}\n")
    for name in names:
        about = described(name)
        print(f"{name}  ({about.task})")
        print(_filled(about.comment))
        sizes = [f"{size} (default)" if size == about.default_size else size for size in about.sizes]
        print(_filled(f"sizes: {', '.join(sizes)}") + "\n" if sizes else "")


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _print_one(name: str, size: str | None) -> int:
    import yaml

    from ..experiments.config.recipe_files import read_recipe

    recipe = read_recipe(name, size)
    content = recipe.to_dict()
    for setting in recipe.data.without_effect():
        del content["data"][setting]
    print(yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=_WIDTH), end="")
    return 0
