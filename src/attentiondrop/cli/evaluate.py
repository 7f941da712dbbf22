"""`attentiondrop evaluate`: test a finished run again, with other attacks or on other weights."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import bad_argument
from . import recipes

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        "evaluate",
        help="Test a finished run again.",
        description="Test the stored weights of a run: the metrics of its task and, with --epsilon, accuracy under PGD "
        "attack with a check that the attack can be believed. Writes evaluation.json into the run.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="RUN", help="The folder of a run, or the --out of `train` with a single run."
    )
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        help="Which stored weights to test. Default: those that the run was tested with, as training.select says.",
    )
    parser.add_argument(
        "--epsilon",
        action="extend",
        nargs="+",
        type=_fraction,
        default=[],
        help="The sizes of the attack, such as 8/255. Without this, nothing is attacked.",
    )
    parser.add_argument("--norm", choices=("linf", "l2"), help="The norm of the attack. Default: linf.")
    parser.add_argument("--steps", type=recipes.positive, help="The steps of the attack. Default: 20.")
    parser.add_argument("--restarts", type=recipes.positive, help="The random restarts of the attack. Default: 1.")
    parser.add_argument("--examples", type=recipes.positive, help="How many test images to attack. Default: 1000.")
    parser.add_argument(
        "--choice",
        choices=("stratified", "first"),
        help="Which test images to attack: all classes in their shares, or the first ones. Default: stratified.",
    )
    recipes.add_place_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Test, print, write."""
    recipes.need()
    for name in ("norm", "steps", "restarts", "examples", "choice"):
        if not args.epsilon and getattr(args, name) is not None:
            raise bad_argument("epsilon", f"sizes of the attack, since --{name} is given", None)
    from .progress import show_progress

    with show_progress(None) as bar:
        from ..experiments.config.schema import TrainingSettings
        from ..experiments.files.typed_settings import build_settings
        from ..experiments.files.whole_files import write_json
        from ..experiments.runs.finished_run import find_run, load_run, tested_weights
        from ..experiments.train.accelerator import device_of

        folder = find_run(args.folder)
        loaded = load_run(folder, args.weights, device_of(TrainingSettings(device=args.device)), args.root)
        attack = {
            "pgd_epsilons": args.epsilon or None,
            "pgd_norm": args.norm,
            "pgd_steps": args.steps,
            "pgd_restarts": args.restarts,
            "pgd_examples": args.examples,
            "pgd_choice": args.choice,
        }
        given = {name: value for name, value in attack.items() if value is not None}
        cls = loaded.task.evaluation_settings
        # An attack has the settings of this command. All else is as in the run, such as the beam of a search.
        attacks = {field.name for field in dataclasses.fields(cls)} & attack.keys()
        before = {} if attacks else dataclasses.asdict(loaded.recipe.evaluation)
        settings = build_settings(cls, before | given, "evaluation")
        bar.plan(1)
        bar.progress("testing", 0)
        found = loaded.task.judge(
            loaded.model, loaded.data, settings, on_batch=lambda done, total: bar.progress("attacking", done / total)
        )
        bar.progress("tested", 1)
    path = folder / "evaluation.json"
    parts = {"reliability": found.reliability, "robustness": found.robustness}
    scores: dict[str, Any] = {"validation": found.validation, "test": found.test}
    scores |= {} if found.signatures is None else {"signatures": found.signatures}
    content = scores | {name: None if part is None else dataclasses.asdict(part) for name, part in parts.items()}
    write_json(path, {"weights": args.weights or tested_weights(loaded.record), **content})
    test, attacked = found.test or {}, found.robustness
    shown = [metric for metric in loaded.task.metrics.all if metric.name in test]
    print(", ".join(f"{metric.label} {metric.text(test[metric.name], metric.digits)}" for metric in shown))
    if attacked is not None:
        for epsilon, accuracy in zip(attacked.epsilons, attacked.accuracy, strict=True):
            print(f"PGD {attacked.norm} {epsilon:.4f}: accuracy {100 * accuracy:.1f} %")
        for line in attacked.notes:
            print(line)
    print(f"the same numbers as JSON: {path}")
    return 0


def _fraction(text: str) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator if slash else 1)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.03 or 8/255, received {text!r}") from None
