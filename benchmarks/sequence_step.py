"""Tokens a second of the translation and language-model steps: the experiments' loop against a bare one, from one run.

The models, batches, optimiser and precision are those of the recipes `multi30k` (tiny) and `tinyshakespeare`, on drawn
numbers instead of text. The bare loop has all its batches on the device before it begins. On CUDA both capture their
steps: one graph for each shape of a batch, into whose inputs a batch is copied before the replay. The experiments' loop
also makes its batches, sets learning rates, and adds up losses. Rows take turns, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from attentiondrop.bench.environment import Environment, environment
from attentiondrop.bench.step_rows import StepRow, Steps, take_rounds, warm_graph, write_table
from attentiondrop.errors import AttentionDropError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.interface import Batch
from attentiondrop.experiments.tasks.language.token_data import TokenData
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.text.aligned_files import Pairs
from attentiondrop.experiments.tasks.text.subwords import SPECIAL
from attentiondrop.experiments.tasks.translation.sentence_pairs import Part, Ragged, SentencePairs
from attentiondrop.experiments.train.captured_step import CAPTURED
from attentiondrop.experiments.train.loop import Training, initial_model

PLAIN, HARD, BLUR = METHODS = ("none", "hard(p=0.1,k=5)", "blur(sigma_max=0.5)")
#: What is asked for: the experiments' loop to the bare one, and each method to plain.
ASKED = {"loop": 0.90, HARD: 0.93, BLUR: 0.96}
PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16}

#: Lengths of Multi30k, in subwords: the mean and spread of their logarithm.
LENGTHS = (2.6, 0.35)
CHARACTERS = 65

#: Takes one step with a batch.
Step = Callable[[Batch], object]


def main() -> int:
    """Build all rows, let them take turns, write the table."""
    options = arguments().parse_args()
    if options.quick:
        options.rounds, options.steps = 2, 2
    rows = [row for row in all_rows(options) if any(fnmatch(row.name, pattern) for pattern in options.rows)]
    if not rows:
        print(f"--rows: expected one of {', '.join(row.name for row in all_rows(options))}", file=sys.stderr)
        return 2
    take_rounds(rows, options.device, options.rounds, options.steps)
    write(rows, options, environment(options.device, options.commit))
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="of a row in a round, about")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps: only to see that it runs")
    parser.add_argument("--rows", nargs="+", default=["*"], help="patterns of rows, such as 'translation*' '*none'")
    for task in ("translation", "language"):
        parser.add_argument(f"--{task}", nargs="+", default=[], metavar="SETTING=VALUE", help="changes of the recipe")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def all_rows(options: argparse.Namespace) -> list[StepRow]:
    """Both tasks, both loops, three methods."""
    rows = []
    for task, setting in (("translation", translation), ("language", language)):
        recipe, data = setting(options)
        targets = [batch.targets for batch in epoch_of(recipe, data)]
        # All epochs have as many; padding does not count.
        tokens = sum(each.numel() if isinstance(each, Tensor) else each.counted for each in targets)
        for loop, build in (("bare", bare), ("loop", engine)):
            for method in METHODS:
                bases = (f"{task}, bare, {method}", f"{task}, {loop}, {PLAIN}")
                rows.append(
                    StepRow(f"{task}, {loop}, {method}", method, build(recipe, data, method, options), bases, tokens)
                )
    return rows


# --- the settings ----------------------------------------------------------------------------------------------------


def translation(options: argparse.Namespace) -> tuple[Recipe, SentencePairs]:
    """The recipe for Multi30k, and drawn sentences with lengths like its own."""
    quick = ["model.layers=1", "model.width=32", "model.feedforward=32", "training.batch_size=1024"]
    changes = ["data.vocabulary=300", *quick] if options.quick else []
    recipe = recipe_of("multi30k", "small", options, [*changes, *options.translation])
    settings: Any = recipe.data
    rng, vocabulary = np.random.default_rng(0), settings.vocabulary
    mean = int(np.exp(LENGTHS[0] + LENGTHS[1] ** 2 / 2)) + 6  # with its end, and padded
    count = options.steps * recipe.training.batch_size // mean
    parts = {"train": drawn_part(rng, count, vocabulary), "validation": drawn_part(rng, 8, vocabulary)}
    checksums = dict.fromkeys(parts, "")
    subwords: Any = range(vocabulary)  # only their number is asked for
    data = SentencePairs(settings=settings, subwords=subwords, parts=parts, checksums=checksums)
    return recipe, data


def drawn_part(rng: np.random.Generator, count: int, vocabulary: int) -> Part:
    """Pairs of sentences of drawn numbers. Both sentences of a pair have a similar length."""
    lengths = np.clip(np.exp(rng.normal(*LENGTHS, count)), 3, 60)
    sides = [np.clip(lengths * rng.uniform(0.8, 1.2, count), 3, 60).astype(np.int64) for _ in range(2)]
    ragged = [
        Ragged(
            rng.integers(len(SPECIAL), vocabulary, side.sum(), dtype=np.int32), np.concatenate([[0], np.cumsum(side)])
        )
        for side in sides
    ]
    return Part(Pairs([""] * count, [""] * count), *ragged)


def language(options: argparse.Namespace) -> tuple[Recipe, TokenData]:
    """The recipe for tinyshakespeare, and drawn characters."""
    quick = ["model.layers=1", "model.heads=2", "model.width=32", "data.block=32", "training.batch_size=4"]
    recipe = recipe_of("tinyshakespeare", "study", options, [*(quick if options.quick else []), *options.language])
    settings: Any = recipe.data
    # One window more than the batches have: an epoch begins somewhere in the first one.
    tokens = (options.steps * recipe.training.batch_size + 1) * settings.block
    generator = torch.Generator().manual_seed(0)
    parts = {
        part: torch.randint(CHARACTERS, (size,), generator=generator, dtype=torch.int32)
        for part, size in (("train", tokens), ("validation", 2 * settings.block))
    }
    vocabulary: Any = range(CHARACTERS)  # only their number is asked for
    return recipe, TokenData(vocabulary, parts, dict.fromkeys(parts, 1), settings.block, settings.block)


def recipe_of(name: str, size: str, options: argparse.Namespace, changes: Sequence[str]) -> Recipe:
    """A recipe with so many epochs that none is the last. On CUDA, steps that cannot be captured are an error."""
    capture = "on" if options.device == "cuda" else "auto"
    common = ["training.epochs=100000", f"training.device={options.device}", f"training.capture={capture}"]
    return read_recipe(name, size, [*common, "training.average_last=1", "measure.probes=0", *changes])


def epoch_of(recipe: Recipe, data: Any) -> list[Batch]:
    """The batches of an epoch, which is a round."""
    return list(data.train_batches(seed=0, epoch=0, batch_size=recipe.training.batch_size))


# --- the loop of the experiments -------------------------------------------------------------------------------------


def engine(recipe: Recipe, data: Any, text: str, options: argparse.Namespace) -> Callable[[], Steps]:
    """The training loop behind `attentiondrop train`: a round is an epoch."""

    def build() -> Steps:
        lines: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            training = Training(recipe, read_method(text), 0, data, Path(folder), lines.append)
        epochs = iter(range(recipe.training.epochs))
        training._train(next(epochs))
        if lines or (options.device == "cuda" and training.captured != CAPTURED):
            raise AttentionDropError("; ".join(lines) or training.captured)

        def steps(count: int) -> None:
            training._train(next(epochs))

        return steps

    return build


# --- a bare loop -----------------------------------------------------------------------------------------------------


def bare(recipe: Recipe, data: Any, text: str, options: argparse.Namespace) -> Callable[[], Steps]:
    """Steps as one would write them by hand, on batches that wait on the device."""

    def build() -> Steps:
        # The same model, method and loss as in the experiments. What takes the steps is written here.
        method, settings, on_cuda = read_method(text), recipe.training, options.device == "cuda"
        torch.manual_seed(0)
        model = initial_model(recipe, method, 0, data).to(options.device).train()
        compiled = settings.compile, settings.compile_loss
        applied = Applied(method, model, *compiled, kinds=settings.kinds, own_kernels=settings.own_kernels)
        objective = applied.objective(find_task(recipe.task), settings.label_smoothing, "batch")
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(settings.learning_rate / 10, device=options.device),
            betas=settings.betas[:2],  # type: ignore[arg-type]
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_cuda,
        )
        dtype = PRECISION[settings.precision]

        def step(batch: Batch) -> None:
            with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
                loss = objective(model, batch)
            loss.backward()
            if settings.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        batches = epoch_of(recipe, data.to(options.device))
        take: Step = Graphs(step) if on_cuda else step

        def steps(count: int) -> None:
            for batch in batches:
                take(batch)

        steps(0)
        return steps

    return build


class Graphs:
    """A step as CUDA graphs, one for each shape of a batch."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[Any, tuple[list[Tensor], Callable[[], object]]] = {}

    def __call__(self, batch: Batch) -> None:
        """Copy the batch into the inputs of its graph, and replay it."""
        leaves, form = tree_flatten(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = tuple(tensor.shape for tensor in tensors)
        if key not in self._graphs:
            device = tensors[0].device
            static = [
                leaf.clone() if isinstance(leaf, Tensor)
                # A count that differs between batches.
                else torch.tensor(leaf, device=device) if isinstance(leaf, float) else leaf
                for leaf in leaves
            ]  # fmt: skip
            given = tree_unflatten(static, form)
            replay = warm_graph(lambda: self._step(given))
            self._graphs[key] = ([leaf for leaf in static if isinstance(leaf, Tensor)], replay)
        inputs, replay = self._graphs[key]
        for own, leaf in zip(inputs, (leaf for leaf in leaves if isinstance(leaf, (Tensor, float))), strict=True):
            own.copy_(leaf) if isinstance(leaf, Tensor) else own.fill_(leaf)
        replay()


# --- the table -------------------------------------------------------------------------------------------------------

HEADINGS = (
    "row",
    "tokens/s",
    "20 - 80 %",
    "/ bare",
    "20 - 80 %",
    "/ plain",
    "20 - 80 %",
    "asked",
    "MiB held",
    "remark",
)


def write(rows: Sequence[StepRow], options: argparse.Namespace, where: Environment) -> None:
    """The table as Markdown, and all of it as CSV."""
    lines = [
        "# Training steps on sequences",
        "",
        f"{where.device}, driver {where.driver or '-'}, torch {where.torch}, commit {where.commit}, {where.date}. "
        f"Median and 20 - 80 % quantiles of {options.rounds} rounds of about {options.steps} steps, in turns; ratios "
        "of speed within a round. / bare: to a bare loop with the same method. / plain: to the same loop without a "
        "method." + (" A quick run of tiny models: only to see that it runs." if options.quick else ""),
        "",
        "translation: recipe multi30k (4 + 4 layers, 128 wide, 4 heads, 10,240 subwords in a batch), drawn sentences. "
        "language: recipe tinyshakespeare (6 layers, 384 wide, 6 heads, 64 x 256 characters, attention dropout 0.2), "
        "drawn characters." + "".join(f" Changed: {change}." for change in [*options.translation, *options.language]),
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"| --- |{' ---: |' * 8} --- |",
    ]
    records = [record(row, rows, options) for row in rows]
    lines += [f"| {' | '.join(cells(one))} |" for one in records]
    write_table(options.out, "sequence-step", "\n".join(lines) + "\n", records, where)


def record(row: StepRow, rows: Sequence[StepRow], options: argparse.Namespace) -> dict[str, Any]:
    """One line of the CSV file."""
    found: dict[str, Any] = {"row": row.name}
    named = zip(
        ("tokens/s", "/ bare", "/ plain"), (row.speed, *(row.ratio(rows, base) for base in row.bases)), strict=True
    )
    for name, value in named:
        found |= {
            name: value and value.middle,
            f"{name} 20 %": value and value.low,
            f"{name} 80 %": value and value.high,
        }
    return found | {
        "asked": asked(row),
        "MiB held": row.memory,
        "rounds": len(row.seconds),
        "steps": options.steps,
        "remark": row.note,
    }


def asked(row: StepRow) -> str:
    """Which ratios of this row are asked for."""
    wanted = [f"/ bare >= {ASKED['loop']:.2f}"] if ", loop, " in row.name and row.method == PLAIN else []
    return "; ".join(wanted + ([f"/ plain >= {ASKED[row.method]:.2f}"] if row.method in ASKED else []))


def cells(one: dict[str, Any]) -> list[str]:
    """A line of the Markdown table."""
    found = [one["row"]]
    for name, digits in (("tokens/s", ",.0f"), ("/ bare", ".3f"), ("/ plain", ".3f")):
        low, middle, high = (one[f"{name}{end}"] for end in (" 20 %", "", " 80 %"))
        found += ["", ""] if middle is None else [f"{middle:{digits}}", f"{low:{digits}} - {high:{digits}}"]
    memory = "" if one["MiB held"] is None else f"{one['MiB held']:,.0f}"
    return [*found, one["asked"], memory, one["remark"]]


if __name__ == "__main__":
    sys.exit(main())
