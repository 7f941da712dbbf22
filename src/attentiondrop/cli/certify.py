"""`attentiondrop certify`: bounds on the true risk of a run, with all their assumptions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import recipes

if TYPE_CHECKING:
    from ..experiments.studies.certify import RunCertificates

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "certify",
        help="Bound the true risk of a finished run.",
        description="Bound the risk of a run on data it has never seen: with its perturbations active, without them, "
        "and what the disagreement between views adds. Then train a data-dependent prior and a Gaussian posterior over "
        "the query and key projections, and bound their risk from training data. Writes certificate.json into the run.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="The folder of a run.")
    parser.add_argument(
        "--weights", choices=("best", "last"), default="best", help="Which stored weights to use. Default: %(default)s."
    )
    parser.add_argument("--delta", type=float, default=0.05, help="The chance of a wrong bound. Default: %(default)s.")
    parser.add_argument(
        "--draws", type=int, default=4, help="The draws of each example, at least 2. Default: %(default)s."
    )
    parser.add_argument(
        "--part",
        default="test",
        help="The held-out part; only test had no part in training or choosing. Default: %(default)s.",
    )
    parser.add_argument(
        "--prior-epochs",
        type=int,
        help="The epochs of the data-dependent prior; 0 leaves it out. Default: those of the recipe, at most 20.",
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed of draws and splits. Default: %(default)s.")
    parser.add_argument("--out", type=Path, help="The file to write. Default: RUN/certificate.json.")
    recipes.add_place_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Certify, print, write."""
    from ..validation import integer

    recipes.need()
    integer("draws", args.draws, minimum=2)
    if args.prior_epochs is not None:
        integer("prior_epochs", args.prior_epochs, minimum=0)
    from .progress import show_progress

    with show_progress(None) as bar:
        bar.plan(1)
        from ..experiments.config.schema import TrainingSettings
        from ..experiments.files.whole_files import write_json
        from ..experiments.studies.certify import FILE, certify_run
        from ..experiments.train.accelerator import device_of

        found = certify_run(
            args.folder,
            part=args.part,
            weights=args.weights,
            draws=args.draws,
            delta=args.delta,
            prior_epochs=args.prior_epochs,
            device=device_of(TrainingSettings(device=args.device)),
            root=args.root,
            seed=args.seed,
            on_progress=bar.progress,
        )
    path: Path = args.out or args.folder / FILE
    write_json(path, found.to_dict())
    _print(found, args.delta)
    print(f"the same numbers as JSON: {path}")
    return 0


def _print(found: RunCertificates, delta: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..experiments.report.whole_tables import print_whole
    from ..theory.rounding import fixed_above

    console = Console(highlight=False)
    # Text, since a str would lose what a method has in brackets.
    title = Text(f"{found.method}: each bound holds with probability {1 - delta:.12g}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("certificate", "risk at most", "measured", "examples"):
        table.add_column(column, justify="left" if column == "certificate" else "right", no_wrap=True)
    reports = [report for report in (found.held_out, found.posterior) if report is not None]
    entries = [entry for report in reports for entry in report.certificates]
    for entry in entries:
        bound = "vacuous" if entry.vacuous else f"{fixed_above(entry.value, 2, factor=100)} %"
        table.add_row(entry.name, bound, f"{100 * entry.estimate:.2f} %", str(entry.n))
    print_whole(table, console)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say("What each covers:")
    for entry in entries:
        say(f"  {entry.name}: {entry.predictor}. By {entry.how}.")
    if found.posterior is not None:
        posterior = found.posterior
        alone = fixed_above(posterior.prior_value, 2, factor=100)
        say(
            f"The posterior: KL {posterior.bound.kl:.2f} nats over {posterior.weights} weights, prior from "
            f"{posterior.prior_examples} examples; the prior alone has the bound {alone} %. "
            f"Its means without perturbation have a test error of {100 * (posterior.deterministic_error or 0.0):.2f} %."
        )
    if found.test_error is not None:
        say(f"The run's own test error: {100 * found.test_error:.2f} %.")
    say("They assume:")
    for line in dict.fromkeys(text for entry in entries for text in entry.assumptions):
        say(f"  - {line}")
    for line in (*found.held_out.notes, *found.notes):
        say(f"  - {line}")
