"""What each method costs: the time of its training as a ratio to that of `none`, from one run.

Every method takes turns with `none`, which stays in memory: a round is an epoch of each, in the experiments' own loop
(captured on CUDA, where the method allows it). Ratios are taken within a round. The cost of a method is the ratio of
its steps, times the epochs that it has for each of `none`. The models are a small one (vit_tiny, 32 x 32 pixels,
patches of 4, 6 layers) and, on CUDA, ViT-B/16 at 224 x 224 pixels.

`docs/methods_table.py` puts the costs into the docs.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from attentiondrop.bench.environment import Environment, environment
from attentiondrop.bench.quantiles import Quantiles, ratios
from attentiondrop.experiments.config.schema import Recipe, TrainingSettings, build_recipe
from attentiondrop.experiments.failures import in_words
from attentiondrop.experiments.methods.groups import expanded
from attentiondrop.experiments.methods.parse import NONE, read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train.loop import Training

SMALL, BASE = "small", "vit-b16"
#: The sections `data` and `model` of a recipe, and the batch size.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    SMALL: ({}, {"name": "vit_tiny_patch16_224", "patch_size": 4, "arguments": {"depth": 6}}, 256),
    BASE: ({"image_size": 224}, {"name": "vit_base_patch16_224"}, 64),
}
FIELDS = ("model", "method", "cost", "ratio", "ratio_20", "ratio_80", "step_ms", "epochs", "captured", "rounds", "note")

#: Trains one epoch.
Epoch = Callable[[], None]


def main() -> int:
    """Measure every method on every model, and write both tables."""
    options = arguments().parse_args()
    methods = expanded(options.methods)
    models = options.models or ([SMALL, BASE] if options.device == "cuda" else [SMALL])
    records: list[dict[str, Any]] = []
    where = environment(options.device, options.commit)
    for model in models:
        base, _ = prepared(NONE, model, options)
        for method in methods:
            records.append(measured(method, model, base, options))
            found = records[-1]
            print(f"{model}, {method}: {found['note'] or found['cost']}", file=sys.stderr, flush=True)
            write(records, where, options)
        del base
        tidy(options.device)
    print(table(records, where, options))
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), help="(default: all that the device can do)")
    parser.add_argument("--methods", nargs="+", default=["all"], help="methods or groups (default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of an epoch")
    parser.add_argument("--batch", type=int, help="(default: 256 for the small model, 64 for ViT-B/16)")
    parser.add_argument("--depth", type=int, help="layers of the models (default: 6 and 12)")
    parser.add_argument("--compile", action="store_true", help="compile the models, which takes long for all methods")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def measured(method: str, model: str, base: Epoch, options: argparse.Namespace) -> dict[str, Any]:
    """One line: the method in turns with `none`. A method that cannot run has the reason."""
    found: dict[str, Any] = dict.fromkeys(FIELDS) | {"model": model, "method": method, "note": ""}
    found["epochs"] = read_method(method).training(TrainingSettings(epochs=1)).epochs
    try:
        epoch, found["captured"] = prepared(method, model, options)
        theirs, ours = [], []
        for number in range(options.rounds):
            # Another order in every other round: what runs first is not always the same.
            for seconds, work in ((theirs, base), (ours, epoch))[:: 1 if number % 2 else -1]:
                seconds.append(timed(work, options.device))
    except Exception as error:
        return found | {"note": f"cannot run: {in_words(error)}"}
    finally:
        tidy(options.device)
    ratio = ratios(ours, theirs)
    found |= {"ratio": ratio.middle, "ratio_20": ratio.low, "ratio_80": ratio.high, "rounds": options.rounds}
    return found | {"cost": ratio.middle * found["epochs"], "step_ms": 1e3 * Quantiles.of(ours).middle / options.steps}


def prepared(method: str, model: str, options: argparse.Namespace) -> tuple[Epoch, str]:
    """What trains an epoch, after a first one, and whether its steps are captured."""
    recipe = recipe_of(model, options)
    data = of_size(load_data(recipe.data), options.steps * recipe.training.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(recipe, read_method(method), 0, data, Path(folder))
    epochs = iter(range(recipe.training.epochs))

    def epoch() -> None:
        training._train(next(epochs))

    epoch()
    return epoch, training.captured


def recipe_of(model: str, options: argparse.Namespace) -> Recipe:
    """Settings as for CIFAR-10, on made-up images. There are so many epochs that none is the last."""
    data, settings, batch = MODELS[model]
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


def table(records: Sequence[dict[str, Any]], where: Environment, options: argparse.Namespace) -> str:
    """The costs as Markdown."""
    lines = [
        "# What each method costs: the time of training as a ratio to `none`",
        "",
        f"{where.device}, driver {where.driver or '-'}, torch {where.torch}, commit {where.commit}, {where.date}. "
        f"Medians and 20 - 80 % quantiles of {options.rounds} rounds of {options.steps} steps in bfloat16, in turns "
        "with `none`.",
        "",
        "| model | method | cost | ratio of a step | 20 - 80 % | ms a step | steps | remark |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for one in records:
        numbers = ["", "", "", ""]
        if one["ratio"] is not None:
            spread = f"{one['ratio_20']:.3f} - {one['ratio_80']:.3f}"
            numbers = [f"{one['cost']:.2f}", f"{one['ratio']:.3f}", spread, f"{one['step_ms']:.2f}"]
        cells = [one["model"], f"`{one['method']}`", *numbers, one["captured"] or "", one["note"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(records: Sequence[dict[str, Any]], where: Environment, options: argparse.Namespace) -> None:
    """Both files, anew after every method: a run that is stopped keeps what it measured."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"methods-{where.slug}"
    path.with_name(f"{path.name}.md").write_text(table(records, where, options), encoding="utf-8")
    with path.with_name(f"{path.name}.csv").open("w", newline="", encoding="utf-8") as file:
        about = {"device": where.device, "torch": where.torch, "commit": where.commit, "date": where.date}
        found = csv.DictWriter(file, [*FIELDS, *about])
        found.writeheader()
        found.writerows({**one, **about} for one in records)


if __name__ == "__main__":
    sys.exit(main())
