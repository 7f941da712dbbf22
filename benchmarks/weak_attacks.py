"""Which attack would leave a model the accuracy that a paper reports?

    weak_attacks.py RUN [RUN ...] --root DATA [--paper 43.1 48.2] [--examples 1000] [--out FOLDER]

A run is a folder that `attentiondrop train` or `compare` made, with its weights. The model is attacked by projected
gradient descent at 8/255, as it should be, and by variants with a mistake or a weakness. With several runs, each model
also gets the images that were made to fool the model of another run. At the end the program looks for the epsilon at
which the attack leaves the accuracy in the middle of `--paper`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentiondrop.bench.environment import environment
from attentiondrop.errors import AttentionDropError
from attentiondrop.evaluation.attacks import Attack, Predict, attackable, find_worst, judge
from attentiondrop.experiments.runs.finished_run import LoadedRun, load_run

EPSILON = 8 / 255
#: Halvings of the interval in which the epsilon is searched.
_HALVINGS = 8


class Target(NamedTuple):
    """A model to attack, and the images. `plain` is the deployed model, `random` the one in training mode."""

    plain: Predict
    random: Predict
    images: Tensor
    labels: Tensor
    #: How much a pixel of each channel changes for a change of 1 after normalisation.
    scale: Tensor


#: Gives the images that shall fool a model.
Maker = Callable[[Target], Tensor]


class Variant(NamedTuple):
    """An attack, what is weak about it, and whether the model is scored in training mode, too."""

    name: str
    weakness: str
    make: Maker
    random: bool = False


def main() -> int:
    """Attack, print each row as it is measured, write the tables."""
    options = arguments().parse_args()
    rows: list[dict[str, str | float]] = []
    epsilons: list[str] = []
    try:
        runs = [load_run(folder, options.weights, options.device, options.root) for folder in options.runs]
        for number, run in enumerate(runs):
            others = [other for other in runs if other is not run][:1]
            for name, weakness, accuracy in measured(run, others, options):
                rows.append({"run": label(run), "attack": name, "weakness": weakness, "accuracy": accuracy})
                print(f"{number + 1}/{len(runs)} {label(run)}: {name}: {100 * accuracy:.1f} %", flush=True)
            with target(run, options.examples) as mine:
                epsilon = matching_epsilon(mine, sum(options.paper) / 200, options.steps)
            epsilons.append(f"{255 * epsilon:.2f}/255 ({label(run)})")
    except AttentionDropError as error:
        print(error, file=sys.stderr)
        return 2
    write(rows, epsilons, options)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--root", help="the file or folder of the data, if they need one")
    parser.add_argument("--weights", choices=("best", "last"), default="last")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="of the attack without a weakness")
    parser.add_argument("--paper", nargs=2, type=float, default=(43.1, 48.2), metavar=("FROM", "TO"), help="in percent")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def label(run: LoadedRun) -> str:
    """The method and the seed of a run."""
    return f"{run.record.request.method}, seed {run.record.request.seed}"


# --- what is measured ------------------------------------------------------------------------------------------------


def measured(run: LoadedRun, others: list[LoadedRun], options: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """The accuracy of one model under each attack: name, weakness, accuracy."""
    with target(run, options.examples) as mine:
        yield "none", "", accuracy(mine.plain, mine.images, mine.labels)
        for variant in variants(options.steps):
            found = variant.make(mine)
            yield variant.name, variant.weakness, accuracy(mine.plain, found, mine.labels)
            if variant.random:
                name, weakness = f"{variant.name}, scored in training mode", f"{variant.weakness}; so is the score"
                yield name, weakness, accuracy(mine.random, found, mine.labels)
        for other in others:
            with target(other, options.examples) as theirs:
                found = correct(EPSILON, options.steps)(theirs)
            yield "PGD at 8/255 on another run", "made for another model", accuracy(mine.plain, found, mine.labels)


@contextmanager
def target(run: LoadedRun, examples: int) -> Iterator[Target]:
    """The model of a run and its first test images."""
    images, labels = first_images(run, examples)
    normalise = run.data.normalise

    def random(x: Tensor) -> Tensor:
        run.model.train()
        try:
            with torch.autocast(x.device.type, enabled=False):
                return run.model(normalise(x))
        finally:
            run.model.eval()

    zero = torch.zeros_like(images[:1])
    scale = 1 / (normalise(zero + 1) - normalise(zero)).abs()
    with attackable(run.model, normalise) as plain:
        yield Target(plain, random, images, labels, scale)


def first_images(run: LoadedRun, examples: int) -> tuple[Tensor, Tensor]:
    """So many images of the test part, not normalised, with their labels."""
    images, labels = next(iter(run.data.batches("test", examples, normalise=False)))
    return images[:examples], labels[:examples]


@torch.no_grad()
def accuracy(predict: Predict, images: Tensor, labels: Tensor) -> float:
    """The share that is classified correctly."""
    return float((predict(images).argmax(-1) == labels).float().mean())


def matching_epsilon(mine: Target, wanted: float, steps: int) -> float:
    """The epsilon at which the attack leaves the accuracy that is wanted, up to 1: no pixel can move further."""

    def leaves(epsilon: float) -> float:
        return accuracy(mine.plain, correct(epsilon, steps)(mine), mine.labels)

    low, high = 0.0, EPSILON
    while high < 1 and leaves(high) > wanted:
        low, high = high, min(1.0, 2 * high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if leaves(middle) > wanted else (low, middle)
    return (low + high) / 2


# --- the attacks -----------------------------------------------------------------------------------------------------


def variants(steps: int) -> list[Variant]:
    """The attack as it should be, and others."""
    small = EPSILON / 8 / 10
    return [
        Variant(f"PGD at 8/255, {steps} steps", "", correct(EPSILON, steps)),
        *[Variant(f"PGD at {size:g}/255, {steps} steps", "a smaller epsilon", correct(size / 255, steps))
          for size in (4, 2, 1, 0.5)],
        Variant("one step of 8/255", "one step", simple(EPSILON, EPSILON, 1)),
        Variant("10 steps of 0.1/255", "steps that reach 1/255", simple(EPSILON, small, 10)),
        Variant("8/255 of normalised pixels", "epsilon in other units", normalised(steps)),
        Variant("8/255 where pixels go to 255", "epsilon in other units", correct(EPSILON / 255, steps)),
        Variant("loss from 16-bit probabilities", "no gradient where the model is sure", saturated(steps)),
        Variant("model in training mode", "gradients of a randomly perturbed model", in_training_mode(steps), True),
        Variant("random signs of 8/255", "no gradient", noise),
    ]  # fmt: skip


def correct(epsilon: float, steps: int) -> Maker:
    """The attack of `attentiondrop.evaluation`."""

    def make(mine: Target) -> Tensor:
        attack = Attack(epsilon=epsilon, steps=steps)
        return find_worst(mine.plain, mine.images, mine.labels, attack, generator(mine)).images

    return make


def simple(epsilon: float, size: float, steps: int) -> Maker:
    """Steps from the image itself; the last point counts."""

    def make(mine: Target) -> Tensor:
        return descend(mine.plain, mine, Attack(epsilon=epsilon, step_size=size, steps=steps), cross_entropy)

    return make


def normalised(steps: int) -> Maker:
    """Epsilon counts after the normalisation: it is smaller in pixels."""

    def make(mine: Target) -> Tensor:
        x, size = mine.images.clone(), 2.5 * EPSILON / steps
        for _ in range(steps):
            move = x + size * mine.scale * gradient(mine.plain, x, mine.labels, cross_entropy).sign() - mine.images
            x = mine.images + torch.minimum(torch.maximum(move, -EPSILON * mine.scale), EPSILON * mine.scale)
        return x

    return make


def saturated(steps: int) -> Maker:
    """The loss is the logarithm of a probability that 16 bits have rounded."""

    def make(mine: Target) -> Tensor:
        return descend(mine.plain, mine, Attack(epsilon=EPSILON, steps=steps), rounded_likelihood)

    return make


def in_training_mode(steps: int) -> Maker:
    """Dropout and regularisers are on, with new draws in every step."""

    def make(mine: Target) -> Tensor:
        return descend(mine.random, mine, Attack(epsilon=EPSILON, steps=steps), cross_entropy)

    return make


def noise(mine: Target) -> Tensor:
    """Each pixel moves by epsilon, up or down."""
    signs = torch.rand(mine.images.shape, generator=generator(mine), device=mine.images.device) < 0.5
    return (mine.images + EPSILON * torch.where(signs, 1.0, -1.0)).clamp(0, 1)


def descend(predict: Predict, mine: Target, attack: Attack, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Steps of an attack from the image itself."""
    x = mine.images.clone()
    for _ in range(attack.steps):
        x = attack.step(x, gradient(predict, x, mine.labels, loss).nan_to_num(0.0), mine.images)
    return x


def gradient(predict: Predict, x: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The gradient of the sum of the losses with respect to the images."""
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(loss(predict(x), labels).sum(), x)
    return found


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The usual loss."""
    return judge(logits, labels, "ce")[0]


def rounded_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """-log of a probability in 16 bits."""
    shares = F.softmax(logits.half(), dim=-1)
    return -shares.gather(1, labels.long()[:, None])[:, 0].log()


def generator(mine: Target) -> torch.Generator:
    """The same random starts for every model."""
    return torch.Generator(mine.images.device).manual_seed(0)


# --- the tables ------------------------------------------------------------------------------------------------------


def write(rows: list[dict[str, str | float]], epsilons: list[str], options: argparse.Namespace) -> None:
    """A table of attacks by runs in Markdown, and all rows as CSV."""
    where = environment(options.device, options.commit)
    low, high = options.paper
    runs = list(dict.fromkeys(str(row["run"]) for row in rows))
    lines = [
        "# Accuracy under attacks with a weakness",
        "",
        f"{where.device}, torch {where.torch}, commit {where.commit}, {where.date}. Percent of {options.examples} test "
        f"images. Bold: between {low:g} and {high:g}, as the paper reports at 8/255.",
        "",
        f"| attack | weakness | {' | '.join(runs)} |",
        f"| --- | --- |{' ---: |' * len(runs)}",
    ]
    for name, weakness in dict.fromkeys((str(row["attack"]), str(row["weakness"])) for row in rows):
        found = {row["run"]: 100 * float(row["accuracy"]) for row in rows if row["attack"] == name}
        cells = [text(found.get(run), low, high) for run in runs]
        lines.append(f"| {name} | {weakness} | {' | '.join(cells)} |")
    middle = f"{sum(options.paper) / 2:.1f} %"
    lines += ["", f"PGD with {options.steps} steps leaves {middle} at an epsilon of {', '.join(epsilons)}."]
    options.out.mkdir(parents=True, exist_ok=True)
    page, figures = (options.out / f"weak-attacks-{where.slug}.{ending}" for ending in ("md", "csv"))
    page.write_text("\n".join([*lines, ""]), encoding="utf-8")
    with figures.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(lines))


def text(percent: float | None, low: float, high: float) -> str:
    """A cell."""
    if percent is None:
        return ""
    return f"**{percent:.1f}**" if low <= percent <= high else f"{percent:.1f}"


if __name__ == "__main__":
    sys.exit(main())
