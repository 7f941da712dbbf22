"""Several runs on one GPU: samples/s of all together, from one run.

Bare graph replays (see `small_model.py`) of one process, of one process with a stream for each run, and of one process
for each run, with and without NVIDIA's Multi-Process Service (MPS); and the experiments' loop in one process for each
run, as `attentiondrop compare --workers N` starts them. All processes take their steps at the same time.

--shares repeats the rows with MPS, where each process may use only so many percent of the GPU's multiprocessors. Then
small kernels of several processes run at the same time, where otherwise each spreads over the whole GPU.

Rows that can share processes do: starting them and compiling takes far longer than measuring. The first process
compiles alone; the others wait for it, and find its code on disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_model import BOTH, HARD, PLAIN, bare, engine

from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles
from attentiondrop.bench.step_rows import Steps
from attentiondrop.experiments.failures import in_words
from attentiondrop.experiments.runs.gpu_sharing import sharing

#: By this variable MPS gives a process a part of the multiprocessors.
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class Row(NamedTuple):
    """What runs: bare steps or the loop, in one process or in many, each run in its process or on its stream."""

    name: str
    kind: str
    alone: bool = False
    streams: bool = False
    with_mps: bool = False

    def runs(self, workers: int) -> int:
        """How many runs take steps at the same time."""
        return 1 if self.alone else workers


ROWS = (
    Row("bare, alone", "bare", alone=True),
    Row("train, alone", "train", alone=True),
    Row("bare, streams", "bare", streams=True),
    Row("bare, processes", "bare"),
    Row("train, processes", "train"),
    Row("bare, processes with MPS", "bare", with_mps=True),
    Row("train, processes with MPS", "train", with_mps=True),
)


def main() -> int:
    """Measure all rows, print each at once, write the table."""
    options = arguments().parse_args()
    if not torch.cuda.is_available():
        print("many_runs.py: needs a CUDA device", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if any(fnmatch(row.name, pattern) for pattern in options.rows)]
    if not rows:
        print(f"--rows: expected one of {', '.join(row.name for row in ROWS)}", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * options.minutes
    results: list[Result] = []
    for method in options.methods:
        one_process = [row for row in rows if row.alone or row.streams]
        many = [row for row in rows if not row.alone and not row.streams and not row.with_mps]
        with_mps = [row for row in rows if row.with_mps]
        with ExitStack() as stack:
            # (All at once: the second group loads while the first one compiles.)
            groups = [
                stack.enter_context(started(method, group, count, options))
                for group, count in ((one_process, 1), (many, options.workers))
                if group
            ]
            for group in groups:
                results += measure(group, options, end)
        for share in (None, *options.shares) if with_mps else ():
            results += measure_with_mps(method, with_mps, share, options, end)
    write(results, options)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=[PLAIN, HARD])
    parser.add_argument("--rows", nargs="+", default=["*"], help="patterns of rows, such as 'bare*' 'train, processes'")
    parser.add_argument("--shares", nargs="+", type=int, default=[], metavar="PERCENT", help="of the multiprocessors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="of each run in a round")
    parser.add_argument("--minutes", type=float, default=5.0, help="then it ends with what it has")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6, help="layers of the model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    parser.set_defaults(device="cuda")
    return parser


# --- the table -------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Images per second of all runs of a row together, or why there are none."""

    method: str
    row: Row
    rate: Quantiles | None
    remark: str = ""


def write(results: Sequence[Result], options: argparse.Namespace) -> None:
    """The table as Markdown."""
    where = environment("cuda", options.commit)
    lines = [
        "# Several runs on one GPU",
        "",
        f"{where.device}, driver {where.driver}, torch {where.torch}, commit {where.commit}, {where.date}.",
        f"Images per second of all runs together, median of {options.rounds} rounds of {options.steps} steps;",
        f"the model and the steps are those of the small model, batch {options.batch}.",
        "",
        "| method | row | runs | img/s | to the best bare row | remark |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for method, row, rate, remark in results:
        same = [one for one in results if one.method == method and one.row.kind == "bare"]
        best = max((one.rate.middle for one in same if one.rate is not None), default=None)
        speed = "" if rate is None else f"{rate.middle:,.0f}"
        ratio = "" if rate is None or best is None else f"{rate.middle / best:.3f}"
        lines.append(f"| {method} | {row.name} | {row.runs(options.workers)} | {speed} | {ratio} | {remark} |")
    text = "\n".join([*lines, ""])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"many-runs-{where.slug}.md").write_text(text, encoding="utf-8")


# --- in this process -------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Processes that measure the same rows, one after the other."""

    method: str
    rows: list[Row]
    processes: list[Any]
    #: Set when the processes may begin: they are loaded before.
    begin: Any
    answers: Any


@contextmanager
def started(
    method: str, rows: list[Row], count: int, options: argparse.Namespace, variables: Mapping[str, str] | None = None
) -> Iterator[Group]:
    """Processes that load what they need, and then wait."""
    context = multiprocessing.get_context("spawn")
    barrier, begin, answers = context.Barrier(count), context.Event(), context.Queue()
    # Several processes find the code on disk. Each of them would start helpers to compile, which takes long.
    surroundings = dict(variables or {}) | ({"TORCHINDUCTOR_COMPILE_THREADS": "1"} if count > 1 else {})
    before = {name: os.environ.get(name) for name in surroundings}
    os.environ |= surroundings
    arguments = (method, rows, options, barrier, begin, answers)
    processes = [context.Process(target=child, args=arguments, daemon=True) for _ in range(count)]
    try:
        for one in processes:
            one.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield Group(method, rows, processes, begin, answers)
    finally:
        for one in processes:
            one.terminate()
        for one in processes:
            one.join(5)


def measure(group: Group, options: argparse.Namespace, end: float) -> list[Result]:
    """Let the processes take their steps; what they say is printed at once."""
    group.begin.set()
    found: list[Result] = []
    trouble = ""
    for row in group.rows:
        start = time.monotonic()
        rate = None
        try:
            if not trouble:
                rate = Quantiles.of(rates(row, group, options, end))
        except Exception as error:
            trouble = in_words(error)  # the processes wait for each other: none of them can go on
        found.append(Result(group.method, row, rate, trouble))
        said = trouble if rate is None else f"{rate.middle:,.0f} img/s"
        print(f"{group.method}: {row.name}, {said}, {time.monotonic() - start:.0f} s", flush=True)
    return found


def measure_with_mps(
    method: str, rows: list[Row], share: int | None, options: argparse.Namespace, end: float
) -> list[Result]:
    """The same under a Multi-Process Service, or why there is none. `share`: percent of the GPU for each process."""
    trouble: list[str] = []
    with sharing(trouble.append) as variables:
        if share is not None:
            rows = [row._replace(name=f"{row.name}, {share} % each") for row in rows]
            variables = {**variables, SHARE: str(share)}
        if not trouble:
            with started(method, rows, options.workers, options, variables) as group:
                return measure(group, options, end)
    return [Result(method, row, None, trouble[0]) for row in rows]


def rates(row: Row, group: Group, options: argparse.Namespace, end: float) -> list[float]:
    """Images per second of all runs of a row, in each round."""
    rounds: list[list[tuple[float, float]]] = [[] for _ in range(options.rounds)]
    for _ in range(len(group.processes) * options.rounds):
        name, number, begin, done = answer(group, end)
        if name != row.name:
            raise RuntimeError(f"a process measured {name} instead of {row.name}")
        rounds[number].append((begin, done))
    images = row.runs(options.workers) * options.steps * options.batch
    return [images / (max(done for _, done in one) - min(begin for begin, _ in one)) for one in rounds]


def answer(group: Group, end: float) -> tuple[str, int, float, float]:
    """What a process says next: row, round, when it began and when it was done."""
    while time.monotonic() < end:
        try:
            found = group.answers.get(timeout=1)
        except queue.Empty:
            if any(one.exitcode for one in group.processes):
                raise RuntimeError("a process died") from None
            continue
        if isinstance(found, str):
            raise RuntimeError(found)
        return found  # type: ignore[no-any-return]
    raise TimeoutError("the time was over (--minutes)")


# --- in the other processes ------------------------------------------------------------------------------------------


def child(
    method: str, rows: Sequence[Row], options: argparse.Namespace, barrier: Any, begin: Any, answers: Any
) -> None:
    """Build the steps of a run (or of several, with a stream each) and take them when all others are ready."""
    try:
        torch.set_num_threads(1)
        torch.zeros(1, device=options.device)
        begin.wait()
        builders: dict[str, Callable[[], Steps]] = {
            "bare": bare(BOTH, method, options),
            "train": engine(method, "auto", options),
        }
        built: dict[str, list[Steps]] = {kind: [] for kind in builders}
        for row in rows:
            take = built[row.kind]
            while len(take) < (options.workers if row.streams else 1):
                take.append(builders[row.kind]())
            one_row(row, take if row.streams else take[:1], options, barrier, answers)
    except Exception as error:
        answers.put(in_words(error))


def one_row(row: Row, take: list[Steps], options: argparse.Namespace, barrier: Any, answers: Any) -> None:
    """All rounds of a row."""
    lanes = [torch.cuda.Stream() for _ in take]
    run(take, lanes, 10)
    for number in range(options.rounds):
        torch.cuda.synchronize()
        barrier.wait()
        start = time.monotonic()
        run(take, lanes, options.steps)
        answers.put((row.name, number, start, time.monotonic()))
    barrier.wait()  # none goes on while another one still measures


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


if __name__ == "__main__":
    sys.exit(main())
