"""What each method costs: the time of its training as a ratio to that of `none`, from one run.

Every method takes turns with `none`, which stays in memory: a round is an epoch of each, in the experiments' own loop
(captured on CUDA, where the method allows it). Ratios are taken within a round. The cost of a method is the ratio of
its steps, times the epochs that it has for each of `none`. The models are a small one (vit_tiny, 32 x 32 pixels,
patches of 4, 6 layers) and, on CUDA, ViT-B/16 at 224 x 224 pixels.

Both files are written after every method. A run that was stopped is continued with `--skip-known FILE`: the lines of
that file (.csv) are kept as they are, with the commit they were measured at, and only the others are measured.

`docs/methods_table.py` puts the costs into the docs.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import gc
import io
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from attentiondrop.bench.environment import Environment, environment
from attentiondrop.bench.quantiles import Quantiles, ratios
from attentiondrop.experiments.config.schema import Recipe, TrainingSettings, build_recipe
from attentiondrop.experiments.failures import in_words
from attentiondrop.experiments.files.whole_files import write_text
from attentiondrop.experiments.methods.groups import expanded
from attentiondrop.experiments.methods.parse import NONE, read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.registry import DEFAULT, find_task
from attentiondrop.experiments.train.loop import Training

SMALL, BASE = "small", "vit-b16"


class Measured(NamedTuple):
    """A model: the sections `data` and `model` of a recipe, the batch size, and the steps of an epoch."""

    data: dict[str, Any]
    model: dict[str, Any]
    batch: int
    steps: int


MODELS = {
    SMALL: Measured({}, {"name": "vit_tiny_patch16_224", "patch_size": 4, "arguments": {"depth": 6}}, 256, 10),
    BASE: Measured({"image_size": 224}, {"name": "vit_base_patch16_224"}, 64, 5),
}
NUMBERS = ("cost", "ratio", "ratio_20", "ratio_80", "step_ms")
ABOUT = ("device", "torch", "commit", "date")
FIELDS = ("model", "method", *NUMBERS, "epochs", "captured", "rounds", "steps", "note", *ABOUT)
HEADINGS = (
    "model",
    "method",
    "cost",
    "ratio of a step",
    "20 - 80 %",
    "ms a step",
    "rounds",
    "commit",
    "steps",
    "remark",
)

#: Trains one epoch.
Epoch = Callable[[], None]
#: One line of the files.
Record = dict[str, Any]
#: (model, method) -> its line, None if it is not measured yet.
Records = dict[tuple[str, str], Record | None]


def main() -> int:
    """Measure every method on every model, and write both tables."""
    options = arguments().parse_args()
    methods = expanded(options.methods)
    models = options.models or ([SMALL, BASE] if options.device == "cuda" else [SMALL])
    where = environment(options.device, options.commit)
    known = known_records(options.skip_known, where) if options.skip_known else {}
    records: Records = {**dict.fromkeys(itertools.product(models, methods)), **known}
    print(introduction(where), flush=True)
    for record in known.values():
        print(line(record), flush=True)
    for model in models:
        if missing := [method for method in methods if (model, method) not in known]:
            with models_built_once():
                for record in measured_all(model, missing, options):
                    records[model, record["method"]] = record | {name: getattr(where, name) for name in ABOUT}
                    print(line(records[model, record["method"]]), flush=True)
                    write(records, where, options.out)
    write(records, where, options.out)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), help="(default: all that the device can do)")
    parser.add_argument("--methods", nargs="+", default=["all"], help="methods or groups (default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="of an epoch (default: 10 for the small model, 5 for ViT-B/16)")
    parser.add_argument("--batch", type=int, help="(default: 256 for the small model, 64 for ViT-B/16)")
    parser.add_argument("--depth", type=int, help="layers of the models (default: 6 and 12)")
    parser.add_argument("--compile", action="store_true", help="compile the models, which takes long for all methods")
    parser.add_argument(
        "--skip-known", type=Path, metavar="FILE", help="a file of an earlier run, whose lines are kept"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def known_records(path: Path, where: Environment) -> dict[tuple[str, str], Record]:
    """The lines of an earlier file that have a cost. They must come from this GPU and this version of torch."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [{**dict.fromkeys(FIELDS, ""), **one} for one in csv.DictReader(file)]
    found: dict[tuple[str, str], Record] = {}
    for one in lines:
        if (one["device"], one["torch"]) != (where.device, where.torch):
            wanted = f"lines of {where.device} with torch {where.torch}"
            raise SystemExit(f"--skip-known: expected {wanted}, received {one['device']} with torch {one['torch']}")
        if one["cost"]:
            found[one["model"], one["method"]] = one | {name: float(one[name]) for name in NUMBERS}
    return found


class Ground(NamedTuple):
    """What all methods on a model share, so that it is made once: `steps` batches of images, on the device."""

    model: str
    recipe: Recipe
    data: Any
    steps: int


def measured_all(model: str, methods: list[str], options: argparse.Namespace) -> Iterator[Record]:
    """The lines of some methods."""
    recipe, steps = recipe_of(model, options), options.steps or MODELS[model].steps
    data = of_size(load_data(recipe.data), steps * recipe.training.batch_size).to(options.device)
    ground = Ground(model, recipe, data, steps)
    base = prepared(NONE, ground)
    # Every capture collects garbage, and so does the end of a method. What is here by now is none.
    gc.collect()
    gc.freeze()
    try:
        for method in methods:
            record = measured(method, base, ground, options)
            tidy(options.device)
            yield record
    finally:
        del base
        gc.unfreeze()
        tidy(options.device)


def measured(method: str, base: Prepared, ground: Ground, options: argparse.Namespace) -> Record:
    """One line: the method in turns with `none`. A method that cannot run has the reason."""
    found: Record = dict.fromkeys(FIELDS) | {"model": ground.model, "method": method, "note": ""}
    # Of many epochs: a method may ask for 1.35 times as many, and epochs are rounded.
    found["epochs"] = read_method(method).training(TrainingSettings(epochs=10_000)).epochs / 10_000
    begin = time.perf_counter()
    try:
        own = prepared(method, ground)
        ready = time.perf_counter()
        theirs, ours = [], []
        for number in range(options.rounds):
            # Another order in every other round: what runs first is not always the same.
            for seconds, work in ((theirs, base.epoch), (ours, own.epoch))[:: 1 if number % 2 else -1]:
                seconds.append(timed(work, options.device))
    except Exception as error:
        return found | {"note": f"cannot run: {in_words(error)}"}
    parts = own.built, ready - begin - own.built, time.perf_counter() - ready
    print("{}, {}: built in {:.1f} s, first epoch {:.1f} s, rounds {:.1f} s".format(ground.model, method, *parts),
          file=sys.stderr, flush=True)  # fmt: skip
    ratio = ratios(ours, theirs)
    return found | {
        "cost": ratio.middle * found["epochs"],
        "ratio": ratio.middle,
        "ratio_20": ratio.low,
        "ratio_80": ratio.high,
        "step_ms": 1e3 * Quantiles.of(ours).middle / ground.steps,
        "captured": own.captured,
        "rounds": options.rounds,
        "steps": ground.steps,
    }


class Prepared(NamedTuple):
    """What trains an epoch, after a first one; whether its steps are captured; the seconds to build it."""

    epoch: Epoch
    captured: str
    built: float


def prepared(method: str, ground: Ground) -> Prepared:
    """A method that is ready to be measured."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        training = Training(ground.recipe, read_method(method), 0, ground.data, Path(folder))
    built = time.perf_counter() - begin
    epochs = iter(range(ground.recipe.training.epochs))

    def epoch() -> None:
        training._train(next(epochs))

    epoch()
    return Prepared(epoch, training.captured, built)


@contextmanager
def models_built_once() -> Iterator[None]:
    """Within, a model that was built before is a copy of the first one: drawing its weights again takes long."""
    task = find_task(DEFAULT)
    build, known = task.build_model, dict[str, nn.Module]()

    def copied(settings: Any, data: Any, rates: Mapping[str, float], seed: int) -> nn.Module:
        key = repr((settings, sorted(rates.items()), seed))
        if key not in known:
            known[key] = build(settings, data, rates, seed)
        return copy.deepcopy(known[key])

    with mock.patch.object(task, "build_model", copied):
        yield


def recipe_of(model: str, options: argparse.Namespace) -> Recipe:
    """Settings as for CIFAR-10, on made-up images. There are so many epochs that none is the last."""
    data, settings, batch, _ = MODELS[model]
    if options.depth is not None:
        settings = settings | {"arguments": {"depth": options.depth}}
    return build_recipe(
        {
            "data": {"name": "fake", "limit": 64, **data},
            "model": settings,
            "training": {
                "epochs": 10_000,
                "batch_size": options.batch or batch,
                "precision": "bfloat16",
                "compile": options.compile,
                "device": options.device,
            },
            "measure": {"probes": 0},
        }
    )


def of_size(data: Any, count: int) -> Any:
    """The same data with so many training images; they repeat."""
    repeats = -(-count // data.counts["train"])
    images, labels = (dict(getattr(data, name)) for name in ("images", "labels"))
    images["train"] = images["train"].repeat(repeats, 1, 1, 1)[:count]
    labels["train"] = labels["train"].repeat(repeats)[:count]
    return dataclasses.replace(data, images=images, labels=labels, counts=data.counts | {"train": count})


def timed(work: Epoch, device: str) -> float:
    """Seconds, the host's part included: that is what a user waits for."""
    wait = torch.cuda.synchronize if device == "cuda" else nullcontext
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def tidy(device: str) -> None:
    """Give the memory of a method back before the next one."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def introduction(where: Environment) -> str:
    """What stands above the lines."""
    return "\n".join(
        [
            "# What each method costs: the time of training as a ratio to `none`",
            "",
            f"{where.device}, driver {where.driver or '-'}, torch {where.torch}, {where.date}. Medians and 20 - 80 % "
            "quantiles of rounds of some steps in bfloat16, in turns with `none`; each line says how many, and the "
            "commit at which it was measured.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
        ]
    )


def line(one: Record) -> str:
    """One method, as a line of the table."""
    numbers = ["", "", "", "", ""]
    if one["ratio"] is not None:
        spread = f"{one['ratio_20']:.3f} - {one['ratio_80']:.3f}"
        times = f"{one['rounds']} x {one['steps']}" if one["steps"] else str(one["rounds"])
        numbers = [f"{one['cost']:.2f}", f"{one['ratio']:.3f}", spread, f"{one['step_ms']:.2f}", times]
    cells = [one["model"], f"`{one['method']}`", *numbers, one["commit"], one["captured"] or "", one["note"]]
    return f"| {' | '.join(cells)} |"


def write(records: Records, where: Environment, folder: Path) -> None:
    """Both files, anew after every method: a run that is stopped keeps what it measured."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"methods-{where.slug}.md"
    found = [one for one in records.values() if one is not None]
    write_text(path, "\n".join([introduction(where), *map(line, found)]) + "\n")
    text = io.StringIO()
    lines = csv.DictWriter(text, FIELDS, lineterminator="\n")
    lines.writeheader()
    lines.writerows(found)
    write_text(path.with_suffix(".csv"), text.getvalue())


if __name__ == "__main__":
    sys.exit(main())
