"""Several runs on one GPU: samples/s of all together, from one run.

Bare graph replays (see `small_model.py`) of one process, of one process with a stream for each run, and of one process
for each run, with and without NVIDIA's Multi-Process Service (MPS); and the experiments' loop in one process for each
run, as `attentiondrop compare --workers N` starts them. All processes take their steps at the same time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from small_model import BOTH, HARD, PLAIN, bare, engine

from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles
from attentiondrop.bench.step_rows import Steps
from attentiondrop.experiments.failures import in_words

MPS = "nvidia-cuda-mps-control"
#: Name of a row -> what runs; whether all runs are streams of one process; whether with MPS.
ROWS = {
    "bare, alone": ("bare", False, False),
    "bare, streams": ("bare", True, False),
    "bare, processes": ("bare", False, False),
    "bare, processes with MPS": ("bare", False, True),
    "train, processes": ("train", False, False),
    "train, processes with MPS": ("train", False, True),
}
#: Seconds to wait for a process that builds its step.
PATIENCE = 240


def main() -> int:
    """Measure all rows, write the table."""
    options = arguments().parse_args()
    if not torch.cuda.is_available():
        print("many_runs.py: needs a CUDA device", file=sys.stderr)
        return 2
    lines: list[str] = []
    for method in options.methods:
        found: dict[str, Quantiles] = {}
        for name, (kind, streams, with_mps) in ROWS.items():
            if with_mps and shutil.which(MPS) is None:
                lines.append(f"| {method} | {name} | | | | {MPS} is not installed |")
                continue
            runs = 1 if name.endswith("alone") else options.workers
            start = time.perf_counter()
            try:
                with mps() if with_mps else unchanged() as variables:
                    rates = together(kind, method, 1 if streams else runs, runs if streams else 1, options, variables)
            except Exception as error:
                lines.append(f"| {method} | {name} | {runs} | | | cannot run: {in_words(error)} |")
                continue
            finally:
                print(f"{method}: {name}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            found[name] = Quantiles.of(rates)
            print(f"{method}: {name}, {found[name].middle:,.0f} img/s", flush=True)  # known even if a later row hangs
        best = max((one.middle for name, one in found.items() if name.startswith("bare")), default=0.0)
        for name, one in found.items():
            runs = 1 if name.endswith("alone") else options.workers
            lines.append(f"| {method} | {name} | {runs} | {one.middle:,.0f} | {one.middle / best:.3f} | |")
    where = environment("cuda", options.commit)
    text = "\n".join(
        [
            "# Several runs on one GPU",
            "",
            f"{where.device}, driver {where.driver}, torch {where.torch}, commit {where.commit}, {where.date}.",
            f"Images per second of all runs together, median of {options.rounds} rounds of {options.steps} steps;",
            f"the model and the steps are those of the small model, batch {options.batch}.",
            "",
            "| method | row | runs | img/s | to the best bare row | remark |",
            "| --- | --- | ---: | ---: | ---: | --- |",
            *lines,
            "",
        ]
    )
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"many-runs-{where.slug}.md").write_text(text)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=[PLAIN, HARD])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of each run in a round")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6, help="layers of the model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    parser.set_defaults(device="cuda")
    return parser


def together(
    kind: str, method: str, processes: int, streams: int, options: argparse.Namespace, variables: dict[str, str]
) -> list[float]:
    """Images per second of all runs in each round."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(processes), context.Queue()
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    children = [
        context.Process(target=child, args=(kind, method, streams, options, barrier, answers), daemon=True)
        for _ in range(processes)
    ]
    try:
        for one in children:
            one.start()
        rounds: list[list[tuple[float, float]]] = [[] for _ in range(options.rounds)]
        for _ in range(processes * options.rounds):
            number, start, end = _answer(answers, children)
            rounds[number].append((start, end))
    finally:
        for one in children:
            one.terminate()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    images = processes * streams * options.steps * options.batch
    return [images / (max(end for _, end in one) - min(start for start, _ in one)) for one in rounds]


def _answer(answers: Any, children: list[Any]) -> tuple[int, float, float]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            found = answers.get(timeout=1)
        except queue.Empty:
            if any(one.exitcode for one in children):
                raise RuntimeError("a process died") from None
            continue
        if isinstance(found, str):
            raise RuntimeError(found)
        return found  # type: ignore[no-any-return]
    raise TimeoutError(f"no answer in {PATIENCE} s")


def child(kind: str, method: str, streams: int, options: argparse.Namespace, barrier: Any, answers: Any) -> None:
    """Build the steps of a run (or of several, with a stream each) and take them when all others are ready."""
    try:
        torch.set_num_threads(1)
        build = bare(BOTH, method, options) if kind == "bare" else engine(method, "auto", options)
        take = [build() for _ in range(streams)]
        lanes = [torch.cuda.Stream() for _ in take]
        run(take, lanes, 10)
        for number in range(options.rounds):
            torch.cuda.synchronize()
            barrier.wait()
            start = time.monotonic()
            run(take, lanes, options.steps)
            answers.put((number, start, time.monotonic()))
        barrier.wait()  # none ends while another one still measures
    except Exception as error:
        answers.put(in_words(error))


def run(take: list[Steps], lanes: list[torch.cuda.Stream], steps: int) -> None:
    """All runs of a process, step by step in turns; then wait for the GPU."""
    if len(take) == 1:
        take[0](steps)
    else:
        for _ in range(steps):
            for one, lane in zip(take, lanes, strict=True):
                with torch.cuda.stream(lane):
                    one(1)
    torch.cuda.synchronize()


@contextmanager
def unchanged() -> Iterator[dict[str, str]]:
    """No variables."""
    yield {}


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A Multi-Process Service of our own, and the variables by which processes find it."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        surroundings = os.environ | variables
        subprocess.run([MPS, "-d"], env=surroundings, check=True, timeout=20)
        try:
            yield variables
        finally:
            subprocess.run([MPS], input="quit\n", env=surroundings, text=True, timeout=60, check=False)


if __name__ == "__main__":
    sys.exit(main())
