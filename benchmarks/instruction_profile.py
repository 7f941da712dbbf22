"""Count the machine instructions of the attention kernels on an H200, and bound their time from below. Needs no GPU.

Triton and NVRTC compile each kernel as on the device (sm_90), with the tile sizes and constants that a real call would
use. The disassembler of Triton shows its instructions, with the line of the source that each one comes from. A sweep is
a loop over tiles of logits. Its instructions and the number of its turns give the least time that a multiprocessor
needs for it, by each of its units. What runs once in a program is left out, and so is all waiting: the real time is
longer. What a method costs is the difference to the same kernel with the method "nothing".

    python benchmarks/instruction_profile.py
    python benchmarks/instruction_profile.py --shape 64,12,577,64 --methods dropkey --measured FILE.csv

Versions matter: to count what was measured, run it with the Triton and NVRTC of that run (the first line names them).
"""

from __future__ import annotations

import argparse
import csv
import inspect
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from machine_code import CLASSES, Code, Instruction, read
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from attentiondrop.bench.environment import environment
from attentiondrop.bench.shapes import Shape
from attentiondrop.torch.call.decisions import Decisions, empty_notes
from attentiondrop.torch.kernels.blur.rows import Blur, blur_rows
from attentiondrop.torch.kernels.decide import launch
from attentiondrop.torch.kernels.shared.tiles import pick_tiles
from attentiondrop.torch.kernels.short import build
from attentiondrop.torch.kernels.short.variants import MOST_KEYS, Device, Variant, backward_of, forward_of

SHAPES = (
    *("64,12,577,64", "16,16,1024,64", "8,32,2048,128,causal,8"),
    *("256,12,197,64", "64,16,256,64", "32,8,128,64"),
)
#: Of each method: the drop, k, the slot of its draws (see `Decisions`), and its row in the tables of `bench attention`.
METHODS = {
    "nothing": ("", 0, None, ""),
    "attndropout": ("", 0, 2, "attndropout(p=0.1)"),
    "dropkey": ("key", 0, 1, "dropkey(p=0.1)"),
    "hard": ("zero", 5, 1, "hard(p=0.1,k=5)"),
    "blur": ("", 0, None, "blur(sigma_max=0.5)"),
}
#: From this length on, hard masking corrects cuDNN's attention; the sweep that finds the k largest is `pick`.
AMENDED_FROM = 1024
H200 = Device(90, 227 * 1024, 228 * 1024)
PROCESSORS, BANDWIDTH = 132, 4.8e12

#: Warp instructions that a multiprocessor of capability 9.0 starts in each cycle: 4 in all, and fewer for some units
#: (CUDA C++ programming guide, throughput of arithmetic instructions; 32 lanes are one warp instruction).
ISSUED, LOGIC, SPECIAL = 4.0, 2.0, 0.5
#: Multiplications of 16 bits that the matrix units do in each cycle and multiprocessor (989 TFLOP/s at 1.83 GHz).
PRODUCTS = 2048
#: Instructions of the unit for integers, logic, comparisons, minima and maxima, and conversions.
OF_LOGIC = {
    *("F2FP", "FLO", "FMNMX", "FSEL", "FSETP", "IABS", "IADD3", "ISETP", "LEA", "LOP3", "P2R", "PLOP3", "PRMT", "R2P"),
    *("SEL", "SGXT", "SHF", "VIADD", "VIMNMX", "VOTE"),
}


class _Driver:
    """What Triton asks a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def triton_kernels(shape: Shape, method: str) -> Iterator[Code]:
    """The kernels that a call launches, but for small ones and those for rows with ties. They are compiled, not run."""
    compiled: list[tuple[str, Any, Any, dict[str, Any]]] = []
    run = JITFunction.run

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **constants)
        compiled.append((self.fn.__name__, kernel, math.prod(grid), constants))
        return kernel

    driver.set_active(_Driver())
    try:
        JITFunction.run = only_compile
        launch_all(shape, method)
    finally:
        JITFunction.run = run
    for name, kernel, programs, constants in compiled:
        if name not in ("words_kernel", "recount_kernel") and not constants.get("TIES"):
            data = kernel.metadata
            yield read(name, kernel.asm["cubin"], 32 * data.num_warps, data.shared, programs, constants)


def launch_all(shape: Shape, method: str) -> None:
    """Call what a real call would call, with tensors that have no memory."""
    drop, top, slot, _ = METHODS[method]
    q, k = (
        torch.empty(shape.batch, heads, shape.length, shape.size, dtype=torch.bfloat16, device="meta")
        for heads in (shape.heads, shape.key_heads)
    )
    seed = torch.empty((), dtype=torch.int64, device="meta")
    streams = [0 if place == slot else -1 for place in range(4)]
    call = Decisions(None, None, seed, None, [0.1] * 4, streams, drop, top, shape.causal, 1 / math.sqrt(shape.size))
    if method == "blur":
        blur_rows(k, k, shape.length, None, Blur(seed, None, 0, "batch", 0.0, 0.5, 5, False, 1), False)
    elif method == "hard" and shape.length >= AMENDED_FROM:
        notes = launch.Notes(*empty_notes(q, k, drop, top))
        lost = q.new_empty(*q.shape[:-1], top, dtype=torch.int32)
        launch.run_pick(q, k, call, launch.make_tables(q, k.shape[2], call), notes, lost, *pick_tiles(q, k))
    else:
        output, lse, notes = launch.forward(q, k, k, call)
        launch.backward(output, q, k, k, output, lse, notes, call)


def short_kernels(shape: Shape, method: str) -> Iterator[Code]:
    """Forward and backward for short rows."""
    drop = {"hard": "largest", "dropkey": "every"}.get(method, "")
    variant = Variant(
        -(-shape.length // 16), shape.size, False, drop, METHODS[method][1], method == "dropkey", shape.causal, False,
        0, False, dropout=method == "attndropout",
    )  # fmt: skip
    options = build._options
    try:
        # The lines do not change the code.
        build._options = lambda kernel, architecture: [*options(kernel, architecture), "--generate-line-info"]
        for kernel in (forward_of(variant, H200), backward_of(variant, H200, -(-shape.length // 16), 1)):
            assert kernel is not None
            binary, _ = build.compile_kernel(kernel, H200.architecture)
            yield read(kernel.name, binary, kernel.threads, kernel.shared_bytes, PROCESSORS * kernel.blocks, {})
    finally:
        build._options = options


class Sweep(NamedTuple):
    """A loop over tiles: its instructions, how often a warp runs it in all, and the logits of a warp in a tile."""

    instructions: list[Instruction]
    turns: float
    logits: int


def sweeps_of(code: Code, shape: Shape) -> list[Sweep]:
    """The loops of a kernel that every call runs. The first one is the main one."""
    if code.name.startswith("blur"):
        logits = code.constants["BLOCK_M"] * code.constants["BLOCK_D"] * 32 // code.threads
        return [Sweep(code.instructions, code.programs * code.threads / 32, logits)]
    if code.name == "forward":
        # A warp takes a tile of 16 rows: the smallest loop with all matrix instructions. It holds rare branches, too.
        number = sum(1 for x in code.instructions if x.products)
        whole = [loop for loop in code.loops if sum(1 for x in code.within(loop) if x.products) == number]
        tiles = shape.batch * shape.heads * -(-shape.length // 16)
        return [Sweep(code.within(min(whole, key=lambda loop: loop[1] - loop[0])), tiles, 16 * shape.length)]
    if not code.constants:
        return []
    rows, columns = code.constants["BM"], code.constants["BN"]
    # With small heads, a turn of the first loop of `select_kernel` takes two tiles.
    tiles = 2 if code.name == "select_kernel" and code.constants["BLOCK_D"] <= 64 else 1
    every = code.threads / 32 * code.programs
    if code.name == "key_kernel":
        turns = turns_by_keys(shape, rows, columns)
    else:
        turns = turns_by_rows(shape, rows, columns, tiles)
    found = zip(code.sweeps(), turns, (tiles, 1), strict=False)
    sweeps = [
        Sweep(code.within(loop), every * number, rows * columns * taken * 32 // code.threads)
        for loop, number, taken in found
    ]
    return sorted(sweeps, key=lambda sweep: -sweep.turns)


def turns_by_rows(shape: Shape, rows: int, columns: int, tiles: int = 1) -> tuple[float, float]:
    """Turns of a program that takes some rows, on average: with `tiles` whole tiles of keys, and with one at edges."""
    whole, edge, length = 0, 0, shape.length
    for first in range(0, length, rows):
        end = min(length, first + rows) if shape.causal else length
        full = min(length, first + 1 if shape.causal else length) // (tiles * columns)
        whole, edge = whole + full, edge + -(-(end - full * tiles * columns) // columns)
    programs = -(-length // rows)
    return whole / programs, edge / programs


def turns_by_keys(shape: Shape, rows: int, columns: int) -> tuple[float, ...]:
    """Tiles of rows of a program that takes some keys: under a causal mask, those at the diagonal come first."""
    group, tiles = shape.heads // shape.key_heads, -(-shape.length // rows)
    if not shape.causal:
        return (float(group * tiles),)
    starts = range(0, shape.length, columns)
    diagonal = [-(-(start + columns - 1) // rows) - start // rows for start in starts]
    rest = [tiles - min(tiles, -(-(start + columns - 1) // rows)) for start in starts]
    return group * sum(diagonal) / len(starts), group * sum(rest) / len(starts)


class Bounds(NamedTuple):
    """Least milliseconds by each unit."""

    issue: float
    logic: float
    exp: float
    matrix: float

    @classmethod
    def of(cls, sweeps: Sequence[Sweep], gigahertz: float) -> Bounds:
        """The time in which all multiprocessors together run the sweeps."""
        cycles = [0.0] * 4
        for code, turns, _ in sweeps:
            logic, special = (sum(x.name in names for x in code) for names in (OF_LOGIC, ("MUFU",)))
            products = sum(x.products for x in code)
            each = len(code) / ISSUED, logic / LOGIC, special / SPECIAL, products / PRODUCTS
            cycles = [total + turns * one for total, one in zip(cycles, each, strict=True)]
        return cls(*(total / PROCESSORS / gigahertz / 1e6 for total in cycles))


_HOW_TO_READ = """\
"nothing" is the same kernel without a method. draws: hashes, comparisons with a rate and the loads of words; k largest:
the search for them (in short rows with its rare branches). The other classes follow from the instruction alone. A turn
of a sweep is one tile of logits; in short rows, 16 rows. `blur_kernel` has no sweep: all its instructions, with 64 rows
of keys as the tile. A stack means registers that are kept in memory. Times are for 132 multiprocessors at {} GHz:
4 instructions per cycle, 2 of the unit for integers and logic, half an instruction for exponentials, 2,048 products of
the matrix units; memory reads or writes each tensor once, at 4.8 TB/s. Nothing in these times waits.
"""


def main(given: Sequence[str] | None = None) -> int:
    """Print two tables in Markdown."""
    text = inspect.getdoc(sys.modules[__name__]) or ""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), metavar="B,H,N,D[,causal][,key heads]")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--gigahertz", type=float, default=1.98, help="clock; default: %(default)s, an H200's highest")
    parser.add_argument("--measured", type=Path, help="a CSV file of `bench attention`, to compare with")
    parser.add_argument("--commit", help="where the source has no git")
    options = parser.parse_args(given)
    shapes = [Shape.parse(shape) for shape in options.shape]
    found = [(shape, method, code) for shape in shapes for method in options.methods for code in kernels(shape, method)]
    where = environment("cpu", options.commit)
    print("# Instructions of the attention kernels\n")
    print(
        f"- compiled by Triton {triton.__version__} and NVRTC {nvrtc_version()} for sm_90 in bfloat16; nothing was run"
    )
    print(f"- commit {where.commit}, {where.date}")
    print(f"- command: `{' '.join(['python', 'benchmarks/instruction_profile.py', *(given or sys.argv[1:])])}`\n")
    print(_HOW_TO_READ.format(options.gigahertz))
    print("## Instructions of a warp in one turn of the main sweep\n")
    head = "tile", "registers", "stack", "warps/SM", "all", *CLASSES, "per logit and lane"
    print(line("shape", "method", "kernel", *head), line(*["---"] * 3, *["---:"] * len(head)), sep="\n")
    for shape, method, code in found:
        print(line(shape, method, code.name, *counted(code, shape)))
    print("\n## Least time of all sweeps of a kernel by unit, ms\n")
    head = "issue slots", "integer and logic", "exp", "matrix", "memory"
    print(line("shape", "method", "kernel", *head), line(*["---"] * 3, *["---:"] * len(head)), sep="\n")
    for shape, method, code in found:
        if sweeps := sweeps_of(code, shape):
            bounds = Bounds.of(sweeps, options.gigahertz)
            print(line(shape, method, code.name, *(f"{one:.3f}" for one in bounds), f"{memory_time(code, shape):.3f}"))
    if options.measured:
        commits = ", ".join(sorted({row["commit"] for row in measured_rows(options.measured)}))
        print(f"\n## Least time by issue slots, all kernels of a pass together, and time measured at {commits}, ms\n")
        print("| shape | method | forward: least | measured | backward: least | measured |")
        print("|---|---|---:|---:|---:|---:|")
        for row in compared(found, measured_times(options.measured), options.gigahertz):
            print(line(*row))
    return 0


def line(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def kernels(shape: Shape, method: str) -> list[Code]:
    """The kernels of a method at a shape. (Blur of short or causal rows has other kernels, which are not counted.)"""
    is_short = shape.length <= MOST_KEYS
    if method == "blur" and (is_short or shape.causal):
        return []
    if is_short:
        return list(short_kernels(shape, method))
    return list(triton_kernels(shape, method))


def counted(code: Code, shape: Shape) -> list[object]:
    """The cells of the first table."""
    tile = f"{code.constants['BM']}x{code.constants['BN']}" if "BM" in code.constants else ""
    cells: list[object] = [tile, code.registers, code.stack, code.warps]
    sweeps = sweeps_of(code, shape)
    if not sweeps:
        return [*cells, f"{len(code.instructions)} in the whole kernel", *[""] * (len(CLASSES) + 1)]
    instructions, _, logits = sweeps[0]
    kinds = Counter(one.kind for one in instructions)
    each = f"{len(instructions) * 32 / logits:.1f}"
    return [*cells, len(instructions), *(kinds[kind] for kind in CLASSES), each]


def memory_time(code: Code, shape: Shape) -> float:
    """Milliseconds to read and write each tensor of a kernel once."""
    queries, keys = (heads * shape.batch * shape.length * shape.size * 2 for heads in (shape.heads, shape.key_heads))
    tensors = {
        "forward": 2 * queries + 2 * keys, "forward_kernel": 2 * queries + 2 * keys, "blur_kernel": 2 * keys,
        "select_kernel": queries + keys, "pick_kernel": queries + keys,
        "query_kernel": 4 * queries + 2 * keys, "key_kernel": 2 * queries + 4 * keys,
    }  # fmt: skip
    return tensors[code.name] / BANDWIDTH * 1e3


def measured_rows(path: Path) -> list[dict[str, str]]:
    """The rows of `bench attention` that were timed."""
    with path.open() as file:
        return [row for row in csv.DictReader(file) if row["status"] == "timed"]


def measured_times(path: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Milliseconds of forward and backward by shape and row."""
    return {
        (str(shape_of(row)), row["row"]): (float(row["forward_ms"]), float(row["step_ms"]) - float(row["forward_ms"]))
        for row in measured_rows(path)
    }


def shape_of(row: dict[str, str]) -> Shape:
    """The shape of a row of `bench attention`."""
    batch, heads, length, size = (int(row[name]) for name in ("batch", "heads", "length", "size"))
    return Shape(batch, heads, length, size, row["causal"] == "True", int(row["key_heads"]))


def compared(
    found: Sequence[tuple[Shape, str, Code]], measured: dict[tuple[str, str], tuple[float, float]], gigahertz: float
) -> Iterator[list[object]]:
    """The lines of the last table: methods whose kernels are all ours."""
    passes = {"select_kernel": 0, "forward_kernel": 0, "query_kernel": 1, "key_kernel": 1}
    least: dict[tuple[str, str], list[float]] = {}
    for shape, method, code in found:
        if code.name in passes and method != "nothing":
            times = least.setdefault((str(shape), method), [0.0, 0.0])
            times[passes[code.name]] += Bounds.of(sweeps_of(code, shape), gigahertz).issue
    for (shape, method), (forward, backward) in least.items():
        if times := measured.get((shape, METHODS[method][3])):
            yield [shape, method, *(f"{one:.3f}" for one in (forward, times[0], backward, times[1]))]


def nvrtc_version() -> str:
    """The version of the compiler of the kernels for short rows."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


if __name__ == "__main__":
    sys.exit(main())
