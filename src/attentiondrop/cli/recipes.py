"""Arguments that several commands share (recipe, seeds, device, trackers), and how to read them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import bad_argument
from . import dry_run, time_limit
from .extras import require

if TYPE_CHECKING:
    from ..experiments.config.schema import Recipe
    from ..experiments.runs.pool import Where

_NEEDS = ("torch", "timm", "accelerate", "safetensors", "filelock", "yaml", "rich", "scipy", "jinja2")
#: The recipe of a command without one.
_DEMONSTRATION = "digits"
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb"}


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments for the recipe, its size, changes to it, and the output folder."""
    parser.add_argument(
        "recipe",
        nargs="?",
        help="The recipe: a name from `attentiondrop recipes`, or a .yaml file. Default: digits, a demonstration.",
    )
    parser.add_argument(
        "--size", help="The size of the recipe, such as demo, small or paper. Default: what the recipe says."
    )
    parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="SETTING=VALUE",
        help="Change settings of the recipe, such as training.epochs=5 data.root=~/data training.device=cuda.",
    )
    parser.add_argument("--out", type=Path, help="The folder for the results. Default: runs/RECIPE-SIZE.")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="Train again what --out holds finished with another recipe. Without this, such a folder is refused.",
    )
    dry_run.add_argument(parser)


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments for the number of seeds, and for workers or a Ray cluster."""
    parser.add_argument(
        "--seeds", type=positive, help="The number of seeds of each method. Default: what the recipe says."
    )
    parser.add_argument(
        "--workers",
        type=positive,
        help="How many runs to do at once on this machine. "
        "Default: one for each core for long studies on a CPU, otherwise 1.",
    )
    parser.add_argument(
        "--no-mps",
        action="store_true",
        help="Let workers take turns on a GPU. Otherwise they use it at the same time, through NVIDIA's Multi-Process "
        "Service, if that is installed.",
    )
    time_limit.add_argument(parser)
    parser.add_argument("--ray", metavar="ADDRESS", help="Run on this Ray cluster. Its machines must share --out.")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Add arguments for the folder of the data and the device, for commands on finished runs."""
    parser.add_argument("--root", help="Where the data is, for data sets that are files.")
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda", "mps"),
        help="The device. Default: auto, an accelerator if there is one.",
    )


def add_tracker_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for experiment trackers."""
    parser.add_argument(
        "--track",
        action="extend",
        nargs="+",
        choices=tuple(_TRACKERS),
        default=[],
        help="Also log each run to these experiment trackers.",
    )


def read(args: argparse.Namespace) -> tuple[Recipe, Path]:
    """The recipe that the arguments describe, and an output folder that is writable."""
    need()
    require([_TRACKERS[name] for name in getattr(args, "track", ())], extra="tracking")
    from ..experiments.config.recipe_files import read_recipe
    from ..experiments.files.whole_files import make_writable
    from ..experiments.tasks.registry import find_task

    seeds = [] if getattr(args, "seeds", None) is None else [f"seeds={args.seeds}"]
    recipe = read_recipe(args.recipe or _DEMONSTRATION, args.size, [*args.set, *seeds])
    task = find_task(recipe.task)
    require(task.packages(recipe.data), extra=task.extra)
    out: Path = args.out or Path("runs") / "-".join(filter(None, (recipe.name, recipe.size)))
    if not args.dry_run:
        make_writable(out)
    if args.recipe is None and not quiet():
        takes = "" if args.dry_run else " (some minutes; Ctrl-C stops it)"
        print(f"no recipe given: the demonstration `{_DEMONSTRATION}`{takes}", file=sys.stderr, flush=True)
    return recipe, out


def need() -> None:
    """Check that the packages for training and testing are installed."""
    require(_NEEDS, extra="experiments")


def where(args: argparse.Namespace) -> Where:
    """Where runs are executed: on this machine or on a Ray cluster."""
    if args.ray is not None:
        require(["ray"], extra="ray")
        if (args.workers or 1) > 1:
            raise bad_argument("workers", "1 with --ray, which has workers of its own", args.workers)
    from ..experiments.runs.deadline import Deadline
    from ..experiments.runs.pool import Where

    workers = args.workers or (0 if args.ray is None else 1)
    return Where(workers, args.ray, Deadline(time_limit.until(args)), mps=not args.no_mps)


def command_line() -> str:
    """The command as typed, so that people can run it again; the home folder becomes "~"."""
    home = str(Path.home())
    typed = [part.replace(home, "~") for part in sys.argv[1:]]
    # A path may contain bytes that are not valid text; a report cannot.
    return shlex.join(["attentiondrop", *typed]).encode("utf-8", "backslashreplace").decode("utf-8")


def positive(text: str) -> int:
    """The argument as an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text!r}")
    return int(text)


def quiet() -> bool:
    """Whether this is one of several processes, and not the one that prints."""
    return int(os.environ.get("RANK", "0")) > 0
