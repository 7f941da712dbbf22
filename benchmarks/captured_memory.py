"""Memory of a captured step and of the same step uncaptured, each in a process of its own.

In one process, what a row holds depends on what ran before it: a capture gives memory of cuBLAS back that others use
as well. Here each row of `small_model.py` gets a fresh process. It takes some steps, in which it compiles and
captures; then it gives back what torch only caches, and takes as many steps again. The peaks of these count, with
workspaces and the pools of graphs.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import torch
from small_model import BOTH, COMPILED, EAGER, GRAPH, all_rows

from attentiondrop.bench.environment import environment

#: The modes of a captured row -> that of the uncaptured row to compare with.
UNCAPTURED = {f"{GRAPH}, ": f"{EAGER}, ", f"{BOTH}, ": f"{COMPILED}, ", "capture auto": "capture off"}
DEFAULT = ("train none, *", "train hard*", f"{EAGER}, none", f"{GRAPH}, none")
FIELDS = {
    "peak reserved": "by torch, in the pools of graphs and for cuBLAS too",
    "peak allocated": "by torch; what a replay uses is in the pool of its graph, and not counted here",
    "device": "beyond the context of CUDA: the first column, and what libraries and graphs take beside torch",
}


def main() -> int:
    """Start a process for each row, print each as it is measured, write the table."""
    options = arguments().parse_args()
    if options.child is not None:
        return child(options)
    if not torch.cuda.is_available():
        print("captured_memory.py: needs a CUDA device", file=sys.stderr)
        return 2
    names = [row.name for row in all_rows(options) if any(fnmatch(row.name, pattern) for pattern in options.rows)]
    if not names:
        print(f"--rows: expected one of {', '.join(row.name for row in all_rows(options))}", file=sys.stderr)
        return 2
    where = environment("cuda", options.commit)
    found: dict[str, dict[str, float]] = {}
    lines = [
        "# Memory of a captured step",
        "",
        f"{where.device}, driver {where.driver}, torch {where.torch}, commit {where.commit}, {where.date}. "
        f"MiB, each row in a process of its own, {options.steps} steps after as many to warm up, batch "
        f"{options.batch}.",
        *("", *(f"- {name}: {text}" for name, text in FIELDS.items())),
        "",
        f"| row | {' | '.join(FIELDS)} | to the uncaptured row |",
        f"| --- |{' ---: |' * (len(FIELDS) + 1)}",
    ]
    # Uncaptured rows come first, so that there is something to compare with.
    for name in sorted(names, key=lambda name: uncaptured(name) is not None):
        line, measured = one_row(name, options)
        found |= measured
        lines.append(line + ratio(name, found))
        print(lines[-1], flush=True)
    text = "\n".join([*lines, ""])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"captured-memory-{where.slug}.md").write_text(text, encoding="utf-8")
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=list(DEFAULT), help="patterns of rows of small_model.py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6, help="layers of the model")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for a row")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.set_defaults(device="cuda")
    return parser


def uncaptured(name: str) -> str | None:
    """The row that takes the same steps uncaptured; None if this one is uncaptured itself."""
    return next((name.replace(mode, other) for mode, other in UNCAPTURED.items() if mode in name), None)


def one_row(name: str, options: argparse.Namespace) -> tuple[str, dict[str, dict[str, float]]]:
    """Measure a row in a fresh process: the beginning of its line, and what was found."""
    start = time.perf_counter()
    numbers = [f"--{option}={getattr(options, option)}" for option in ("steps", "batch", "depth")]
    command = [sys.executable, __file__, f"--child={name}", *numbers]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.patience, check=True)
        measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return f"| {name} | cannot run: {type(error).__name__} | | |", {}
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return f"| {name} | {' | '.join(f'{measured[field]:,.0f}' for field in FIELDS)} |", {name: measured}


def ratio(name: str, found: dict[str, dict[str, float]]) -> str:
    """The last cell of a line."""
    other = uncaptured(name)
    if other not in found or name not in found:
        return " |"
    return f" {found[name]['peak reserved'] / found[other]['peak reserved']:.3f} |"


def child(options: argparse.Namespace) -> int:
    """In the process of a row: take its steps, and print what they need."""
    torch.zeros(1, device="cuda")
    before = used()
    row = next(row for row in all_rows(options) if row.name == options.child)
    take = row.build()
    take(options.steps)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    take(options.steps)
    torch.cuda.synchronize()
    peaks = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated(), used() - before
    print(json.dumps({field: value / 2**20 for field, value in zip(FIELDS, peaks, strict=True)}))
    return 0


def used() -> int:
    """Bytes of the device that are in use, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return total - free


if __name__ == "__main__":
    sys.exit(main())
