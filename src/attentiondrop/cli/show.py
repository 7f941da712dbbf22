"""`attentiondrop show`: a picture of what regularisers do to one row and one map of attention."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import bad_argument
from ..parsing import parse
from ..specs import REGISTRY
from ..validation import integer
from .extras import require

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

#: The examples that each spec class gives in `shown`.
DEFAULT = tuple(text for spec in REGISTRY.values() for text in spec.shown)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    text = "Draw what regularisers do to a row and a map of attention."
    parser = subparsers.add_parser("show", help=text, description=text)
    parser.add_argument(
        "specs",
        nargs="*",
        default=list(DEFAULT),
        metavar="SPEC",
        help="What to draw, such as 'hard(p=0.5,k=5)'. Default: every regulariser that changes a row of attention.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/attention.png"),
        help="The picture, .png, .pdf or .svg. Default: %(default)s.",
    )
    parser.add_argument("--tokens", type=int, default=24, help="The number of tokens. Default: %(default)s.")
    parser.add_argument(
        "--seed", type=int, default=0, help="The seed of the attention and of the draws. Default: %(default)s."
    )
    parser.add_argument("--causal", action="store_true", help="Draw it under a causal mask.")
    return parser


def run(args: argparse.Namespace) -> int:
    """Draw the picture and print its path."""
    require(["matplotlib"], "experiments")
    from ..pictures import draw

    specs = [parse(text).at(0.0) for text in args.specs]
    if all(leaf.level == "model" for spec in specs for leaf in spec.leaves()):
        raise bad_argument("specs", "a spec that acts on attention", " ".join(args.specs))
    if args.out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise bad_argument("out", "a name that ends in .png, .pdf or .svg", str(args.out))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(args.out, specs, integer("tokens", args.tokens, minimum=4), args.seed, args.causal)
    print(f"picture: {args.out}")
    return 0
