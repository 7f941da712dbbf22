"""Attention of long rows, forward and backward: time and peak memory as the length grows, with and without a window.

Rows are plain SDPA, hard masking and blur, and both again under a sliding window, at one shape and growing lengths,
causal and not. Before it is timed, each row of ours is compared with the eager path in float64 at the shortest length,
with the same draws. The page ends with the slopes of time and memory over the length, both on logarithmic scales: 1 is
linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attentiondrop import parse
from attentiondrop.bench.clock import clock_for
from attentiondrop.bench.environment import Environment, environment
from attentiondrop.bench.length import growing
from attentiondrop.bench.quantiles import Quantiles, ratios
from attentiondrop.bench.rows import one_line
from attentiondrop.bench.shapes import Shape
from attentiondrop.bench.step_rows import write_table
from attentiondrop.bench.tensors import Attend, Tensors, forward_backward, make_tensors
from attentiondrop.bench.turns import Timed, take_turns, warmed
from attentiondrop.torch import attention

PLAIN = "SDPA"
SPECS = {"hard": parse("hard(p=0.1,k=5)"), "blur": parse("blur(sigma_max=0.5)")}
WINDOWED = ", window"
ROWS = (PLAIN, *SPECS, *(f"{name}{WINDOWED}" for name in SPECS))
#: The largest relative error of an output or a gradient against float64, as in `attentiondrop bench attention`.
LIMITS = {torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.float32: 1e-4}


def main() -> int:
    """Time all rows at all lengths, write the table. Ends with 1 if a row failed its check."""
    options = arguments().parse_args()
    started = time.perf_counter()
    records: list[dict[str, Any]] = []
    for causal in (True, False):
        shape = Shape(options.batch, options.heads, options.shortest, options.size, causal)
        failed = {name: reason for name in ROWS if (reason := why_wrong(name, shape, options))}
        for longer in growing(shape, options.longest):
            records += at_length(longer, failed, options)
            say(f"{longer}: {time.perf_counter() - started:.0f} s")
    write(records, options, environment(options.device, options.commit))
    return int(any(one["remark"].startswith("FAILED") for one in records))


def arguments() -> argparse.ArgumentParser:
    """The options."""
    on_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if on_cuda else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16" if on_cuda else "float32", choices=("bfloat16", "float32"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="of a head")
    parser.add_argument("--shortest", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=32768 if on_cuda else 4096)
    parser.add_argument("--window", type=int, default=1024, help="keys that a row sees")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.3, help="about, for a row at a length")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


# --- the rows --------------------------------------------------------------------------------------------------------


def attend_of(name: str, shape: Shape, options: argparse.Namespace, backend: str = "auto") -> Attend:
    """The function to time: attention as a user would call it."""
    if name == PLAIN:
        return partial(F.scaled_dot_product_attention, is_causal=shape.causal)
    half = options.window // 2
    sides = (options.window - 1, 0) if shape.causal else (options.window - 1 - half, half)
    window = sides if name.endswith(WINDOWED) else None
    spec: Any = SPECS[name.removesuffix(WINDOWED)]
    chosen: Any = backend

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, spec, is_causal=shape.causal, window=window, backend=chosen)

    return attend


def why_wrong(name: str, shape: Shape, options: argparse.Namespace) -> str:
    """Why a row is not timed: its results, or an error. Empty if it is right."""
    if name == PLAIN:
        return ""
    dtype = getattr(torch, options.dtype)
    tensors = make_tensors(shape, options.device, dtype)
    try:
        found = forward_backward(attend_of(name, shape, options), tensors, seed=3)
        truth = forward_backward(attend_of(name, shape, options, "eager"), tensors.cut(shape, torch.float64), seed=3)
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {one_line(str(error))}"
    worst = max(float((have - want).norm() / want.norm()) for have, want in zip(found, truth, strict=True))
    return "" if worst <= LIMITS[dtype] else f"FAILED CHECK: relative error {worst:.2g}, allowed {LIMITS[dtype]:g}"


def at_length(shape: Shape, failed: dict[str, str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One record for each row."""
    tensors = make_tensors(shape, options.device, getattr(torch, options.dtype))
    notes, timed = dict(failed), dict[str, Timed]()
    for name in ROWS:
        if name not in notes:
            try:
                timed[name] = prepared(name, shape, tensors, options)
            except torch.OutOfMemoryError:
                notes[name] = "out of memory"
            if options.device == "cuda":
                torch.cuda.empty_cache()
    taken = take_turns(timed, clock_for(options.device), options.repeats, options.seconds, lambda share: None)
    records = []
    for name in ROWS:
        one: dict[str, Any] = {"row": name, "causal": shape.causal, "length": shape.length}
        one |= dict.fromkeys(("step ms", "step ms 20 %", "step ms 80 %", "/ SDPA", "/ SDPA 20 %", "/ SDPA 80 %"))
        if name in timed:
            step, ratio = Quantiles.of(taken[name].step), ratios(taken[name].step, taken[PLAIN].step)
            one |= {"step ms": 1e3 * step.middle, "step ms 20 %": 1e3 * step.low, "step ms 80 %": 1e3 * step.high}
            one |= {"/ SDPA": ratio.middle, "/ SDPA 20 %": ratio.low, "/ SDPA 80 %": ratio.high}
        extra = timed[name].extra_bytes if name in timed else None
        one |= {"extra MiB": None if extra is None else extra / 2**20, "remark": notes.get(name, "")}
        records.append(one)
    return records


def prepared(name: str, shape: Shape, tensors: Tensors, options: argparse.Namespace) -> Timed:
    """A row that ran once."""
    return warmed(attend_of(name, shape, options), tensors, clock_for(options.device))


# --- the table -------------------------------------------------------------------------------------------------------


def write(records: Sequence[dict[str, Any]], options: argparse.Namespace, where: Environment) -> None:
    """The page, and all numbers as CSV."""
    lines = [
        f"# Long rows: {options.batch}x{options.heads}xNx{options.size}, {options.dtype}, forward and backward",
        "",
        f"{where.device}, driver {where.driver or '-'}, torch {where.torch}, commit {where.commit}, {where.date}. "
        "Median time of forward and backward in ms, its ratio to plain SDPA in the same repeat, and MiB that it needs "
        f"beyond its inputs. Windows have {options.window} keys, SDPA has none. Specs: "
        + ", ".join(f"{name} is `{spec}`" for name, spec in SPECS.items())
        + ".",
    ]
    for causal in (True, False):
        chosen = [one for one in records if one["causal"] is causal]
        lengths = sorted({one["length"] for one in chosen})
        lines += ["", f"## {'Causal' if causal else 'Not causal'}", ""]
        lines += [f"| row | {' | '.join(map(str, lengths))} | slope of time | of memory |"]
        lines += [f"| --- |{' ---: |' * (len(lengths) + 2)}"]
        for name in ROWS:
            mine = [one for one in chosen if one["row"] == name]
            slopes = [slope(mine, "step ms"), slope(mine, "extra MiB")]
            cells = [*map(cell, mine), *("" if found is None else f"{found:.2f}" for found in slopes)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        remarks = dict.fromkeys(f"- {one['row']}, {one['length']}: {one['remark']}" for one in chosen if one["remark"])
        lines += ["", *remarks] if remarks else []
    write_table(options.out, "long-rows", "\n".join(lines) + "\n", records, where)


def cell(one: dict[str, Any]) -> str:
    """Time, ratio and memory of a row at a length."""
    if one["step ms"] is None:
        return "-"
    memory = "" if one["extra MiB"] is None else f", {one['extra MiB']:,.0f} MiB"
    return f"{one['step ms']:.2f} ({one['/ SDPA']:.2f}){memory}"


def slope(records: Sequence[dict[str, Any]], field: str) -> float | None:
    """The slope of a straight line through the logarithms; None with fewer than two values."""
    points = [(math.log(one["length"]), math.log(one[field])) for one in records if one[field]]
    return float(np.polyfit(*zip(*points, strict=True), 1)[0]) if len(points) > 1 else None


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
