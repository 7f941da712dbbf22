"""`attentiondrop compare`: several methods, one recipe, paired seeds, one table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..experiments.methods import DEFAULT_METHODS, read_methods
from ..experiments.recipe import DATA, DEVICES, Recipe
from ..experiments.record import make_writable
from .extras import require

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_NEEDS = ("torch", "timm", "torchmetrics", "sklearn", "rich")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "compare",
        help="train a small model with several methods and compare them",
        description="Train a small vision transformer with several methods and compare accuracy, calibration and time. "
        "Every seed starts all methods from the same weights and shows them the same batches. "
        "Finished runs are kept: the same command continues where it stopped.",
    )
    parser.add_argument("data", nargs="?", choices=DATA, default=DATA[0], help="data set (default: %(default)s)")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(DEFAULT_METHODS),
        metavar="METHOD",
        help="none, dropout(p=0.1), or specs such as 'hard(p=0.1,k=5)' and 'blur(sigma_max=0.5)', "
        "joined with '+' (default: " + " ".join(DEFAULT_METHODS) + ")",
    )
    parser.add_argument("--seeds", type=_positive, default=2, help="seeds for each method (default: %(default)s)")
    parser.add_argument("--epochs", type=_positive, default=Recipe.epochs, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: runs/DATA)")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="(default: %(default)s)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run what is missing, print the table."""
    methods = read_methods(args.methods)
    recipe = Recipe(data=args.data, epochs=args.epochs, device=args.device)
    out: Path = args.out or Path("runs") / args.data
    require(_NEEDS, extra="experiments")
    make_writable(out)
    from .progress import ProgressBar

    with ProgressBar("epochs") as bar:
        # Loading torch takes seconds: the bar is on the screen before that.
        from ..experiments.compare import compare

        rows = compare(methods, args.seeds, recipe, out, bar)
    from rich.console import Console

    from ..experiments.table import note, render

    console = Console(highlight=False)
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    seeds, epochs = _count(args.seeds, "seed"), _count(args.epochs, "epoch")
    title = f"{args.data}, {epochs}: mean {sign} standard deviation over {seeds}"
    console.print(render(rows, title, sign))
    if warning := note(args.seeds):
        console.print(warning, markup=False, soft_wrap=True)
    console.print(f"The same numbers as JSON: {out / 'results.json'}", markup=False, soft_wrap=True)
    return 0


def _count(number: int, word: str) -> str:
    return f"1 {word}" if number == 1 else f"{number} {word}s"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text!r}")
    return int(text)
