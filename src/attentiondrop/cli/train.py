"""`attentiondrop train`: one run. Under torchrun or accelerate launch, one run on all of their processes."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import bad_argument
from . import dry_run, recipes

if TYPE_CHECKING:
    from ..experiments.config.schema import Recipe
    from ..experiments.runs.job import Job

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "train",
        help="Train once, with one method.",
        description="Train one model with one method and one seed, and test it. compare finds the run and does not "
        "repeat it. The same command continues where it stopped. Under torchrun or accelerate launch all processes "
        "share the run.",
    )
    recipes.add_recipe_arguments(parser)
    parser.add_argument("--method", default="none", help="The method, as for compare. Default: %(default)s.")
    parser.add_argument("--seed", type=int, default=0, help="The seed of all random choices. Default: %(default)s.")
    recipes.add_tracker_argument(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train what is missing, and print the result and the folder of the run."""
    from ..experiments.methods.parse import read_method
    from ..validation import integer

    method, seed = read_method(args.method), integer("seed", args.seed, minimum=0)
    recipe, out = recipes.read(args)
    if args.dry_run:
        return _dry_run(recipe, method.text, seed, out, args.overwrite)
    from .progress import show_progress

    bar: AbstractContextManager[Any] = nullcontext() if recipes.quiet() else show_progress("epochs")
    with bar as listener:
        from ..experiments.runs.checking import check_jobs
        from ..experiments.runs.execute import data_for, execute
        from ..experiments.runs.job import Job, standing
        from ..experiments.runs.pool import describe
        from ..experiments.train.accelerator import on_this_machine

        content, trackers = on_this_machine(recipe).to_dict(), tuple(args.track)
        job = Job(content, method.text, seed, str(out), trackers=trackers, overwrite=args.overwrite)
        todo = standing(job, data_for(recipe).checksums).todo
        if todo == "train":
            check_jobs([job], (lambda line: None) if listener is None else listener.say)
        if listener is None:
            result = execute(job)
        else:
            listener.plan(job.epochs if todo == "train" else 0)
            result = execute(job, lambda done: listener.progress(job.label, done), listener.say)
    if listener is not None:
        print(f"{job.label}: {describe(job, result)}")
        print(f"run: {job.folder}")
    return 0 if result.status == "finished" else 2


def _dry_run(recipe: Recipe, method: str, seed: int, out: Path, overwrite: bool) -> int:
    def groups() -> dict[str, list[Job]]:
        from ..experiments.runs.job import Job
        from ..experiments.train.accelerator import on_this_machine, processes

        if processes() > 1:
            raise bad_argument("dry-run", "a single process, without torchrun or accelerate launch", processes())
        job = Job(on_this_machine(recipe).to_dict(), method, seed, str(out), overwrite=overwrite)
        return {job.label: [job]}

    return dry_run.show(groups)
