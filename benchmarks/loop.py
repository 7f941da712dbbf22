"""The cost of the experiments' training loop, compared with a loop written by hand: ratios of epochs from one run.

The loop by hand does only what is needed: pick a batch, forward, cross entropy, backward, AdamW, a learning rate. Ours
adds Accelerate, schedules, augmentation and seeds from the epoch. Both start from the same weights, get the same number
of batches, and take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles, ratios
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train.loop import Training, initial_model
from attentiondrop.learning_rate import warmup_then_cosine


def main() -> int:
    """Train both in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="digits")
    parser.add_argument("--size")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--repeats", type=int, default=15, help="epochs of each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    options = parser.parse_args()
    recipe = read_recipe(options.recipe, options.size, [*options.set, "training.epochs=1000", "measure.probes=0"])
    data = load_data(recipe.data)
    with tempfile.TemporaryDirectory() as folder:
        ours = Training(recipe, read_method("none"), 0, data, Path(folder))
        by_hand = hand_written(recipe, ours)
        seconds: dict[str, list[float]] = {"by hand": [], "attentiondrop": []}
        for repeat in range(options.repeats + 1):
            # The loop that is first in one repeat is second in the next.
            order = [("by hand", by_hand), ("attentiondrop", ours._train)]
            for name, epoch in order if repeat % 2 else order[::-1]:
                start = time.perf_counter()
                epoch(repeat)
                if repeat:  # the first one warms up
                    seconds[name].append(time.perf_counter() - start)
            print(f"repeat {repeat} of {options.repeats}", file=sys.stderr, flush=True)
    where = environment(ours.accelerator.device.type, options.commit)
    lines = [
        f"# The training loop, {recipe.name} {recipe.size}, {recipe.model.name}",
        "",
        f"{where.device}, torch {where.torch}, commit {where.commit}, {where.date}. An epoch is {ours.steps} steps of "
        f"{recipe.training.batch_size} images; median and 20 - 80 % quantiles of {options.repeats}, in turns.",
        "",
        "| loop | ms a step | 20 - 80 % | / by hand |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, values in seconds.items():
        step = Quantiles.of([1000 * value / ours.steps for value in values])
        ratio = ratios(values, seconds["by hand"])
        lines.append(
            f"| {name} | {step.middle:.2f} | {step.low:.2f} - {step.high:.2f} | "
            f"{ratio.middle:.3f} ({ratio.low:.3f} - {ratio.high:.3f}) |"
        )
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"loop-{where.slug}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def hand_written(recipe: Recipe, ours: Training) -> Callable[[int], float]:
    """A function that trains one epoch, written for this model only."""
    device, settings = ours.accelerator.device, recipe.training
    model = initial_model(recipe, read_method("none"), 0, ours.data).to(device).train()
    if settings.compile:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    batches = list(ours.data.batches("train", ours.data.counts["train"]))
    images, labels = batches[0]
    steps = settings.epochs * ours.steps
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.precision]

    def epoch(index: int) -> float:
        order = torch.randperm(len(labels)).to(device)
        total = torch.zeros((), device=device)
        for step in range(ours.steps):
            chosen = order[step * settings.batch_size : (step + 1) * settings.batch_size]
            for group in optimizer.param_groups:
                factor = warmup_then_cosine(index * ours.steps + step, steps, settings.warmup)
                group["lr"] = settings.learning_rate * factor
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = F.cross_entropy(model(images[chosen]).float(), labels[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        return total.item() / ours.steps

    return epoch


if __name__ == "__main__":
    sys.exit(main())
