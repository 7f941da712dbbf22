"""`attentiondrop variance`: how perturbation changes the variance of mini-batch gradients, at checkpoints of runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import bad_argument
from . import recipes

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.studies.gradient_study import RunVariance
    from ..theory.variance import Terms

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "variance",
        help="Decompose the gradient variance of finished runs.",
        description="Measure Var[g_base], Var[g_AD], Var[dg] and Cov at the checkpoints of runs, in total and by "
        "layer, with intervals, check that they add up, and draw the variance over training. Writes variance.json into "
        "each run.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="The folders of the runs.")
    parser.add_argument(
        "--examples", type=recipes.positive, default=512, help="How many training images to use. Default: %(default)s."
    )
    parser.add_argument(
        "--draws", type=int, default=2, help="The draws of each of them, at least 2. Default: %(default)s."
    )
    parser.add_argument(
        "--method",
        choices=("auto", "samples", "batches"),
        default="auto",
        help="Whether to take gradients of examples (samples), or of mini-batches, where something draws once a call. "
        "Default: %(default)s.",
    )
    parser.add_argument(
        "--batches", type=int, default=48, help="How many mini-batches, with --method batches. Default: %(default)s."
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed of draws and choices. Default: %(default)s.")
    parser.add_argument("--out", type=Path, help="The picture. Default: variance.png in the first run.")
    recipes.add_place_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, print, draw, write."""
    from ..validation import integer

    recipes.need()
    integer("draws", args.draws, minimum=2)
    integer("batches", args.batches, minimum=2)
    if args.out is not None and args.out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise bad_argument("out", "a name that ends in .png, .pdf or .svg", str(args.out))
    from .progress import show_progress

    found: list[RunVariance] = []
    with show_progress(None) as bar:
        bar.plan(len(args.folders))
        from ..experiments.config.schema import TrainingSettings
        from ..experiments.files.whole_files import write_json
        from ..experiments.studies.gradient_study import FILE, PICTURE, variance_of_run
        from ..experiments.train.accelerator import device_of
        from ..theory.curve import draw

        for index, folder in enumerate(args.folders):
            entry = variance_of_run(
                folder,
                examples=args.examples,
                draws=args.draws,
                method=args.method,
                batches=args.batches,
                device=device_of(TrainingSettings(device=args.device)),
                root=args.root,
                seed=args.seed,
                on_progress=_after(bar.progress, index),
            )
            write_json(folder / FILE, entry.to_dict())
            found.append(entry)
        picture: Path = args.out or args.folders[0] / PICTURE
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(picture, [entry.curve for entry in found])
    from rich.console import Console

    console = Console(highlight=False)
    for entry in found:
        _print(entry, console)
    print("Var[g_AD] = Var[g_base] + 2 Cov + Var[dg] holds to rounding in every row (checked).")
    print(f"picture: {picture}")
    print("the same numbers as JSON: " + ", ".join(str(folder / FILE) for folder in args.folders))
    return 0


def _after(progress: Callable[[str, float], None], done: int) -> Callable[[str, float], None]:
    return lambda label, share: progress(label, done + share)


def _print(entry: RunVariance, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..experiments.report.whole_tables import print_whole

    last = entry.checkpoints[-1][1]
    kind = "examples" if last.method == "samples" else f"mini-batches of {last.batch_size}"
    table = Table(
        # Text, since a str would lose what a method has in brackets.
        title=Text(
            f"{entry.method}, seed {entry.seed}: variance of the gradient of {last.batch_size} examples, from "
            f"{last.units} {kind}, {last.draws} draws each; {100 * last.confidence:g} % intervals"
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    columns = ("", "Var base", "Var AD", "Var dg", "Cov", "ratio", "interval")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for epoch, found in entry.checkpoints:
        table.add_row(f"epoch {epoch}", *_cells(found.total))
    table.add_section()
    for layer, terms in last.layers.items():
        table.add_row(layer, *_cells(terms))
    print_whole(table, console)


def _cells(terms: Terms) -> list[str]:
    numbers = (terms.base, terms.perturbed, terms.difference, terms.covariance)
    low, high = terms.intervals["ratio"]
    interval = "-" if math.isnan(low) else f"{low:.3g} to {high:.3g}"
    return [*(f"{value:.1e}" for value in numbers), f"{terms.ratio:.3g}", interval]
