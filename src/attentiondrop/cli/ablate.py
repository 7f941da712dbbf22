"""`attentiondrop ablate`: one method over a grid of its settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import bad_argument
from . import dry_run, recipes, time_limit
from .compare import show

if TYPE_CHECKING:
    from ..experiments.config.schema import Recipe
    from ..experiments.runs.job import Job

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "ablate",
        help="Train one method over a grid of its settings.",
        description="Train a method at every point of a grid of one or two of its settings, with the same seeds, and "
        "draw the validation accuracy as a map. Into the folder of a compare, the map becomes part of its report.",
    )
    recipes.add_recipe_arguments(parser)
    parser.add_argument("--method", help="The method to vary, such as hard or blur. Default: what the recipe says.")
    parser.add_argument(
        "--vary",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD=A,B,...",
        help="One or two settings with their values, such as p=0.05,0.1 k=3,5.",
    )
    recipes.add_study_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run what is missing, write the report."""
    grids = _grids(args)
    recipe, out = recipes.read(args)
    if args.dry_run:
        return _dry_run(args, recipe, grids, out)
    from .progress import show_progress

    def study() -> None:
        with show_progress("epochs") as bar:
            from ..experiments.studies.ablate import ablate

            ablate(
                recipe,
                grids,
                args.seeds or recipe.seeds,
                out,
                bar,
                command=recipes.command_line(),
                where=recipes.where(args),
                overwrite=args.overwrite,
            )

    return time_limit.report_in_time(study, show, out)


def _dry_run(args: argparse.Namespace, recipe: Recipe, grids: dict[str, Any], out: Path) -> int:
    where = recipes.where(args)

    def groups() -> dict[str, list[Job]]:
        from ..experiments.studies.ablate import jobs_of_ablation
        from ..experiments.studies.compare import check_alone

        check_alone("ablate")
        return jobs_of_ablation(recipe, grids, args.seeds or recipe.seeds, out, where, args.overwrite)

    return dry_run.show(groups, where.ray is not None)


def _grids(args: argparse.Namespace) -> dict[str, Any]:
    if (args.method is None) != (not args.vary):
        raise bad_argument("vary", "--method and --vary together, or neither", args.vary or args.method)
    if args.method is None:
        return {}
    from ..parsing import read_call

    axes: dict[str, Any] = {}
    for text in args.vary:
        field, equals, values = text.partition("=")
        if not equals or not values:
            raise bad_argument("vary", "FIELD=A,B,... such as p=0.05,0.1", text)
        axes.setdefault(field, []).extend(
            read_call(f"{args.method.partition('(')[0]}({field}={value})")[1][field] for value in values.split(",")
        )
    return {args.method: axes}
