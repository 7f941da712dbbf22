"""How fast a small model trains: bare steps (eager, compiled, as CUDA graphs) and the experiments' loop, from one run.

The model is timm's vit_tiny for 32 x 32 pixels with patches of 4 and 6 layers: the GPU is quick, so the time of Python
shows. A bare step is forward, cross entropy, backward and AdamW on one batch that stays where it is. The loop of
`attentiondrop train` adds picking, augmenting and normalising batches, a learning rate, and seeds. Rows take turns, and
ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from torch.nn import functional as F

from attentiondrop.bench.environment import Environment, environment
from attentiondrop.bench.step_rows import StepRow, Steps, repeated, take_rounds, warm_graph, write_table
from attentiondrop.errors import AttentionDropError
from attentiondrop.experiments.config.schema import Recipe, build_recipe
from attentiondrop.experiments.methods.parse import Method, read_method
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.pool import set_aside
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.classification.data.dataset import ArrayData
from attentiondrop.experiments.train.compiled_code import share_compiled_code
from attentiondrop.experiments.train.loop import Training
from attentiondrop.torch import attach, consistency_loss

EAGER, COMPILED, GRAPH, BOTH = "eager", "torch.compile", "graph of eager", "graph of compiled"
PLAIN, HARD, BLUR, CONSISTENT = "none", "hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "blur(sigma_max=0.5)+consistency"
NAME, ARGUMENTS = "vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "num_classes": 10}


def main() -> int:
    """Build all rows, let them take turns, write the table."""
    options = arguments().parse_args()
    rows = [row for row in all_rows(options) if any(fnmatch(row.name, pattern) for pattern in options.rows)]
    if not rows:
        print(f"--rows: expected one of {', '.join(row.name for row in all_rows(options))}", file=sys.stderr)
        return 2
    take_rounds(rows, options.device, options.rounds, options.steps)
    starts = [warm_start(method, options) for method in (PLAIN, HARD)] if options.warm_start else []
    write(rows, options, environment(options.device, options.commit), starts)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="of a row in a round")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6, help="layers of the model")
    parser.add_argument("--rows", nargs="+", default=["*"], help="patterns of rows, such as 'eager*' 'train*'")
    parser.add_argument("--warm-start", action="store_true", help="also: how long a second run takes to its first step")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def all_rows(options: argparse.Namespace) -> list[StepRow]:
    """Bare steps in four modes, and the loop with and without capture."""
    rows, images = [], options.batch * options.steps
    for mode in (EAGER, COMPILED, GRAPH, BOTH):
        for method in (PLAIN, HARD, BLUR, *([CONSISTENT] if mode == BOTH else [])):
            build = bare(mode, method, options)
            rows.append(StepRow(f"{mode}, {method}", method, build, (f"{mode}, {PLAIN}",), images))
    for method in (PLAIN, HARD, CONSISTENT):
        for capture in ("auto", "off"):
            name = f"train {method}, capture {capture}"
            build = engine(method, capture, options)
            rows.append(StepRow(name, method, build, (f"{BOTH}, {method}",), images))
    return rows


# --- a bare step -----------------------------------------------------------------------------------------------------


def bare(mode: str, text: str, options: argparse.Namespace) -> Callable[[], Steps]:
    """Steps as one would write them by hand."""

    def build() -> Steps:
        if mode in (GRAPH, BOTH) and options.device != "cuda":
            raise AttentionDropError("CUDA graphs need CUDA")
        torch.manual_seed(0)
        method, device = read_method(text), options.device
        model = timm.create_model(NAME, depth=options.depth, **ARGUMENTS).to(device).train()
        if method.attached is not None:
            attach(model, method.attached)
        if mode in (COMPILED, BOTH):
            share_compiled_code()
            model.compile(dynamic=False)
        capturable = mode in (GRAPH, BOTH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=capturable)
        images = torch.randn(options.batch, 3, 32, 32, device=device)
        labels = torch.randint(10, (options.batch,), device=device)

        def step() -> None:
            with torch.autocast(device, torch.bfloat16):
                loss = objective(model, method, images, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return repeated(warm_graph(step) if capturable else step)

    return build


def objective(model: nn.Module, method: Method, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy, and the consistency loss if the method has one."""

    def mean(output: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.float(), labels)

    if method.consistency is None:
        return mean(model(images))
    return consistency_loss(model, images, mean, method.consistency, logits=torch.Tensor.float).loss


# --- the loop of the experiments -------------------------------------------------------------------------------------


def engine(text: str, capture: str, options: argparse.Namespace) -> Callable[[], Steps]:
    """The training loop behind `attentiondrop train`, on as many images as a round has."""

    def build() -> Steps:
        recipe = recipe_of(options, capture, epochs=10_000)
        data = of_size(load_data(recipe.data), options.steps * options.batch)
        lines: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            training = Training(recipe, read_method(text), 0, data, Path(folder), lines.append)
        epochs = iter(range(recipe.training.epochs))
        training._train(next(epochs))
        if lines:
            raise AttentionDropError(lines[0])

        def steps(count: int) -> None:
            training._train(next(epochs))

        return steps

    return build


def recipe_of(options: argparse.Namespace, capture: str, epochs: int) -> Recipe:
    """Settings as for CIFAR-10, on made-up images."""
    return build_recipe(
        {
            "data": {"name": "fake", "augment": "flip-crop", "limit": max(2 * options.batch, 20)},
            "model": {"name": NAME, "patch_size": 4, "arguments": {"depth": options.depth}},
            "training": {
                "epochs": epochs,
                "batch_size": options.batch,
                "precision": "bfloat16",
                "compile": options.device == "cuda",  # a compiler for a CPU may be missing, and takes long
                "capture": capture,
                "device": options.device,
            },
            "measure": {"probes": 0},
        }
    )


def warm_start(text: str, options: argparse.Namespace) -> str:
    """From the end of a run to the end of the first step of the next one, in one process, with another seed."""
    recipe = recipe_of(options, "auto", epochs=1).to_dict()
    wait = torch.cuda.synchronize if options.device == "cuda" else nullcontext
    set_step = Training._set_step
    stepped: list[float] = []

    def watched(self: Training, step: int) -> None:
        if step == 1:  # the second step begins
            wait()
            stepped.append(time.perf_counter())
        set_step(self, step)

    ended = []
    try:
        Training._set_step = watched  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            for seed in (0, 1):
                result = execute(Job(recipe, text, seed, folder))
                if result.error is not None:
                    return f"{text}: {result.error}"
                ended.append(time.perf_counter())
                if seed == 0:
                    set_aside()  # as a study does between two runs
    finally:
        gc.unfreeze()
        Training._set_step = set_step  # type: ignore[method-assign]
    return f"{text}: {stepped[1] - ended[0]:.2f} s ({result.capture or 'not captured, on a CPU'})"


def of_size(data: Any, count: int) -> ArrayData:
    """The same data with so many training images; they repeat."""
    repeats = -(-count // data.counts["train"])
    images, labels = (dict(getattr(data, name)) for name in ("images", "labels"))
    images["train"] = images["train"].repeat(repeats, 1, 1, 1)[:count]
    labels["train"] = labels["train"].repeat(repeats)[:count]
    found: ArrayData = dataclasses.replace(data, images=images, labels=labels, counts=data.counts | {"train": count})
    return found


# --- the table -------------------------------------------------------------------------------------------------------

HEADINGS = ("row", "img/s", "20 - 80 %", "to", "ratio", "20 - 80 %", "MiB held", "remark")


def write(rows: Sequence[StepRow], options: argparse.Namespace, where: Environment, starts: Sequence[str]) -> None:
    """The table as Markdown, and all of it as CSV."""
    lines = [
        f"# A small model: {NAME}, 32 x 32 pixels, patches of 4, {options.depth} layers, batch {options.batch}, bf16",
        "",
        f"{where.device}, driver {where.driver or '-'}, torch {where.torch}, commit {where.commit}, {where.date}. "
        f"Median and 20 - 80 % quantiles of {options.rounds} rounds of {options.steps} steps, in turns; ratios of "
        "speed within a round.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"| --- | {'---: | ' * 2}--- | {'---: | ' * 3}--- |",
    ]
    records = [record(row, rows, options) for row in rows]
    for one in records:
        speed, ratio = one["img/s"], one["ratio"]
        cells = [
            one["row"],
            f"{speed:,.0f}" if speed else "",
            f"{one['img/s 20 %']:,.0f} - {one['img/s 80 %']:,.0f}" if speed else "",
            one["to"] if ratio else "",
            f"{ratio:.3f}" if ratio else "",
            f"{one['ratio 20 %']:.3f} - {one['ratio 80 %']:.3f}" if ratio else "",
            "" if one["MiB held"] is None else f"{one['MiB held']:,.0f}",
            one["remark"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if starts:
        lines += ["", "From the end of a run to the end of the first step of the next, in one process:"]
        lines += ["", *(f"- {text}" for text in starts)]
    write_table(options.out, "small-model", "\n".join(lines) + "\n", records, where)


def record(row: StepRow, rows: Sequence[StepRow], options: argparse.Namespace) -> dict[str, Any]:
    """One line of the CSV file."""
    (base,) = row.bases
    speed, ratio = row.speed, row.ratio(rows, base)
    return {
        "row": row.name,
        "img/s": speed and speed.middle,
        "img/s 20 %": speed and speed.low,
        "img/s 80 %": speed and speed.high,
        "to": base,
        "ratio": ratio and ratio.middle,
        "ratio 20 %": ratio and ratio.low,
        "ratio 80 %": ratio and ratio.high,
        "MiB held": row.memory,
        "rounds": len(row.seconds),
        "steps": options.steps,
        "batch": options.batch,
        "remark": row.note,
    }


if __name__ == "__main__":
    sys.exit(main())
