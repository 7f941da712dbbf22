"""What the attention kernels wait for: hardware counters of each kernel, read by Nsight Compute on a CUDA device.

    python benchmarks/hardware_profile.py [--case "64,12,577,64 dropkey(p=0.1)" ...] [--commit COMMIT] [--out FOLDER]

Each case is one forward and backward pass; "plain" is cuDNN's attention without a method. `ncu` runs this program
again, and reads the counters of every kernel of a case. It repeats a kernel several times for this, with empty caches,
so times are longer than those of `bench attention`. Only kernels with at least 4 % of the time of their case are shown.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from attentiondrop.bench.environment import environment
from attentiondrop.bench.rows import OursRow, SdpaRow
from attentiondrop.bench.shapes import Shape
from attentiondrop.bench.tensors import forward_backward, make_tensors

PLAIN = "plain"
CASES = (
    *(f"64,12,577,64 {spec}" for spec in (PLAIN, "attndropout(p=0.1)", "dropkey(p=0.1)", "hard(p=0.1,k=5)")),
    *(f"16,16,1024,64 {spec}" for spec in ("attndropout(p=0.1)", "hard(p=0.1,k=5)")),
    "64,12,577,64 blur(sigma_max=0.5)",
    *(f"8,32,2048,128,causal,8 {spec}" for spec in ("hard(p=0.1,k=5)", "blur(sigma_max=0.5)")),
    *(f"256,12,197,64 {spec}" for spec in (PLAIN, "hard(p=0.1,k=5)")),
    *(f"{shape} hard(p=0.1,k=5)" for shape in ("64,16,256,64", "32,8,128,64")),
)
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats", "ComputeWorkloadAnalysis")
#: A kernel that nothing else here launches: it says where the next case begins.
MARK = "erfinv"
SHOWN_FROM = 0.04

TIME = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
NAME = "Kernel Name"
#: Columns of the table: the counter, and by what it is multiplied.
COLUMNS = {
    "registers": ("launch__registers_per_thread", 1.0),
    "warps/SM": ("sm__warps_active.avg.per_cycle_active", 1.0),
    "issuing %": ("smsp__issue_active.avg.per_cycle_active", 100.0),
    "matrix %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    "logic %": ("sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active", 1.0),
    "float %": ("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", 1.0),
    "exp %": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1.0),
    "memory %": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
}
#: The average number of warps that stand here, for each instruction that a scheduler starts.
STALL = ("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio")
#: Not a wait: the instruction that is just started, and warps that could start but were not the one chosen.
NO_WAIT = ("selected", "not_selected")


class Kernel(NamedTuple):
    """One kernel of a case, with its counters."""

    case: str
    counters: dict[str, str]
    #: Microseconds in the unit of its time.
    unit: float

    @property
    def microseconds(self) -> float:
        """Its time."""
        return self.number(TIME) * self.unit

    def number(self, counter: str) -> float:
        """A counter, NaN where this GPU or version of Nsight Compute has none."""
        text = self.counters.get(counter, "").replace(",", "")
        try:
            return float(text)
        except ValueError:
            return float("nan")

    def waits(self) -> list[tuple[str, float]]:
        """What its warps wait for, the longest first: each share of the time between two instructions of a warp."""
        begin, end = STALL
        found = {
            counter[len(begin) : -len(end)]: self.number(counter)
            for counter in self.counters
            if counter.startswith(begin) and counter.endswith(end) and "not_issued" not in counter
        }
        total = sum(value for value in found.values() if value == value)
        waits = [(reason, value / total) for reason, value in found.items() if reason not in NO_WAIT and value > 0]
        return sorted(waits, key=lambda wait: -wait[1])


def run_case(case: str) -> None:
    """Forward and backward of one case."""
    text, method = case.split(" ", 1)
    shape = Shape.parse(text)
    tensors = make_tensors(shape, "cuda", torch.bfloat16)
    row = SdpaRow("cudnn") if method == PLAIN else OursRow(method)
    attend = row.build(shape, tensors)
    mark = torch.zeros(8, device="cuda")
    for _ in range(3):
        forward_backward(attend, tensors)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    mark.erfinv_()
    forward_backward(attend, tensors)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def read_kernels(lines: Iterable[str], cases: Sequence[str]) -> Iterator[Kernel]:
    """The kernels in what `ncu --csv --page raw` printed: a line of names, a line of units, and a line for each."""
    rows = csv.DictReader(text for text in lines if text.startswith('"'))
    case, unit = -1, 1.0
    for row in rows:
        if not row["ID"]:
            unit = MICROSECONDS[row[TIME].removesuffix("econd")]
        elif MARK in row[NAME]:
            case += 1
        elif case >= 0:
            yield Kernel(cases[case], row, unit)


def short_name(name: str) -> str:
    """A kernel's name without its types."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0].split("<")[0]
    if "::" not in name and name.startswith("cudnn"):
        return "cuDNN " + ("backward" if "bprop" in name else "forward")
    return ("cuDNN " if name.startswith("cudnn") else "") + name.split("::")[-1]


def rows_of(kernels: Sequence[Kernel], cases: Sequence[str]) -> Iterator[list[str]]:
    """The rows of the table."""
    for case in cases:
        own = [kernel for kernel in kernels if kernel.case == case]
        total = sum(kernel.microseconds for kernel in own)
        for kernel in own:
            if kernel.microseconds >= SHOWN_FROM * total:
                numbers = (kernel.number(counter) * factor for counter, factor in COLUMNS.values())
                waits = ", ".join(f"{reason} {share:.0%}" for reason, share in kernel.waits()[:4])
                yield [
                    *case.split(" ", 1),
                    short_name(kernel.counters[NAME]),
                    f"{kernel.microseconds / 1000:.3f}",
                    *("" if number != number else f"{number:.0f}" for number in numbers),
                    waits,
                ]


def line(cells: Sequence[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def report(kernels: Sequence[Kernel], cases: Sequence[str], command: str, commit: str | None) -> str:
    """The page of results."""
    here = environment("cuda", commit)
    columns = ["shape", "method", "kernel", "ms", *COLUMNS, "what a warp does between two of its instructions"]
    return "\n".join([
        "# What the attention kernels wait for",
        "",
        f"- device: {here.device} ({here.driver}); torch {here.torch}, triton {here.triton}; read by Nsight Compute",
        f"- commit {here.commit}, {here.date}",
        f"- command: `{command}`",
        "",
        "ms: with empty caches, so longer than in a step. warps/SM: warps on a multiprocessor on average; 64 fit.",
        "issuing %: cycles in which a scheduler starts an instruction. matrix, logic, float, exp %: how busy the unit",
        "is. memory %: of the bandwidth. The last column: the four longest waits. long_scoreboard: for global memory;",
        "short_scoreboard: for shared memory and exponentials; wait: a fixed delay after an instruction; gmma: for the",
        "matrix unit; math_pipe_throttle: the unit is busy; barrier: for other warps; mio_throttle: a queue is full.",
        "",
        line(columns),
        line([*("---",) * 3, *("---:",) * (1 + len(COLUMNS)), "---"]),
        *map(line, rows_of(kernels, cases)),
        "",
    ])  # fmt: skip


def main() -> int:
    """Profile, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="*", default=list(CASES), help="a shape as in `bench attention`, and a method")
    parser.add_argument("--commit", help="the commit of the source, where git cannot tell")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--target", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.target:
        for case in options.case:
            run_case(case)
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        print("hardware_profile.py needs Nsight Compute: found no program `ncu`.", file=sys.stderr)
        return 2
    sections = [word for section in SECTIONS for word in ("--section", section)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        profiler = [
            *(ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"),
            *("--log-file", str(log), *sections),
            *(sys.executable, __file__, "--target", "--case", *options.case),
        ]
        subprocess.run(profiler, check=True)
        lines = log.read_text().splitlines()
    kernels = list(read_kernels(lines, options.case))
    asked = " ".join(shlex.quote(case) for case in options.case) if options.case != list(CASES) else ""
    command = f"python benchmarks/hardware_profile.py {'--case ' * bool(asked)}{asked}".strip()
    text = report(kernels, options.case, command, options.commit)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"hardware-profile-{environment('cuda').slug}.md"
    file.write_text(text)
    print(text)
    print(f"wrote {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
