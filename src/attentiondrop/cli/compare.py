"""`attentiondrop compare`: several methods, one recipe, paired seeds, one report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import dry_run, recipes, time_limit

if TYPE_CHECKING:
    from ..experiments.config.schema import Recipe
    from ..experiments.runs.job import Job

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "compare",
        help="Train with several methods and compare them.",
        description="Train one model with several methods and compare accuracy, calibration, robustness and time. "
        "Every seed starts all methods from the same weights and shows them the same batches. "
        "Finished runs are kept: the same command continues where it stopped. Tuning sees the validation part only. "
        "The final runs are tested.",
    )
    recipes.add_recipe_arguments(parser)
    parser.add_argument(
        "--methods",
        action="extend",
        nargs="+",
        metavar="METHOD",
        help="The methods: none, dropout(p=0.1), dropconnect, r-drop, or specs such as 'hard(p=0.1,k=5)' and "
        "'blur(sigma_max=0.5)', joined with '+'; or groups: all, attention, hidden, ... (see attentiondrop methods). "
        "The first one is the baseline. Default: what the recipe says.",
    )
    parser.add_argument(
        "--trials",
        type=int,
        help="How many settings of each method to try on the validation part; 0 for none. Default: what the recipe "
        "says.",
    )
    recipes.add_study_arguments(parser)
    recipes.add_tracker_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run what is missing, print the table, write the report."""
    if args.methods is not None:
        from ..experiments.methods.groups import expanded
        from ..experiments.methods.parse import read_methods

        args.methods = expanded(args.methods)
        read_methods(args.methods)  # refuses a wrong one before torch is loaded
    if args.trials is not None:
        args.set.append(f"tuning.trials={args.trials}")
    recipe, out = recipes.read(args)
    if args.dry_run:
        return _dry_run(args, recipe, out)
    from .progress import show_progress

    def study() -> None:
        with show_progress("epochs") as bar:
            # Loading torch takes seconds, so the bar is shown before.
            from ..experiments.studies.compare import compare

            compare(
                recipe,
                args.methods or recipe.methods,
                args.seeds or recipe.seeds,
                out,
                bar,
                command=recipes.command_line(),
                where=recipes.where(args),
                trackers=tuple(args.track),
                overwrite=args.overwrite,
            )
            bar.say("writing the report")

    return time_limit.report_in_time(study, show, out)


def _dry_run(args: argparse.Namespace, recipe: Recipe, out: Path) -> int:
    where, methods, seeds = recipes.where(args), args.methods or recipe.methods, args.seeds or recipe.seeds

    def groups() -> dict[str, list[Job]]:
        from ..experiments.studies.compare import check_alone, jobs_of_comparison

        check_alone("compare")
        return jobs_of_comparison(recipe, methods, seeds, out, where, args.overwrite)

    return dry_run.show(groups, where.ray is not None)


def show(out: Path) -> int:
    """Print the tables of a study, write its report and print its path; return 2 if runs of it failed."""
    from rich.console import Console

    from ..experiments.analysis.collect import summarise
    from ..experiments.report import write_summary
    from ..experiments.report.terminal import show as show_tables
    from ..experiments.studies.plan import read_study

    console = Console(highlight=False)
    summary = summarise(read_study(out))
    show_tables(summary, console)
    paths = write_summary(summary)
    console.print(f"report: {paths.html}", markup=False, soft_wrap=True)
    return 2 if any(each.status == "failed" for each in summary.outcomes) else 0
