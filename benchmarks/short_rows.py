"""Attention of short rows, forward and backward, by replays of CUDA graphs, as ratios to cuDNN's in the same process.

`attentiondrop bench attention --graph` measures more and checks each row first. This program is for work on the kernels
for short rows: six shapes in half a minute, each graph with ten calls, so that the time of a launch does not count. To
compare two versions of the kernels, run it with `PYTHONPATH` on each of them in turn. The first run of a version also
compiles its kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentiondrop import parse
from attentiondrop.bench.clock import captured, clock_for
from attentiondrop.bench.environment import environment
from attentiondrop.bench.shapes import Shape
from attentiondrop.bench.tensors import Attend, Tensors, make_tensors
from attentiondrop.torch import attention

SHAPES = ("256,12,197,64", "32,8,128,64", "512,12,128,64", "64,16,256,64", "64,12,65,64", "256,12,65,16")
SPECS = ("hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "attndropout(p=0.1)", "blur(width=1)")
#: Calls in a graph.
CALLS = 10


def main(given: Sequence[str] | None = None) -> int:
    """Print a table in Markdown, a line for each shape and spec."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), metavar="B,H,N,D")
    parser.add_argument("--specs", nargs="+", default=list(SPECS), metavar="SPEC")
    parser.add_argument("--rounds", type=int, default=9, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--commit", help="where the source has no git")
    options = parser.parse_args(given)
    if not torch.cuda.is_available():
        print("short_rows.py: needs a CUDA device", file=sys.stderr)
        return 2
    where = environment("cuda", options.commit)
    print(f"{where.device}, driver {where.driver}, torch {where.torch}, commit {where.commit}, {where.date}.")
    print("Milliseconds.\n")
    print("| shape | plain: forward, both | | forward | backward | both | ratio |")
    print("|---|---|---|---:|---:|---:|---:|")
    for text in options.shape:
        for line in lines_of(Shape.parse(text), options.specs, options.rounds):
            print(line, flush=True)
    return 0


def lines_of(shape: Shape, specs: Sequence[str], rounds: int) -> list[str]:
    """The lines of the table for one shape."""
    tensors = make_tensors(shape, "cuda", torch.bfloat16)
    work = [each for attend in (plain, *map(perturbed, specs)) for each in forward_and_both(attend, tensors)]
    times = medians([captured(each) for each in work], rounds)
    of_plain = times[:2]
    lines = []
    for number, spec in enumerate(specs, start=1):
        forward, both = times[2 * number : 2 * number + 2]
        head = [str(shape), f"{of_plain[0]:.3f}, {of_plain[1]:.3f}"] if number == 1 else ["", ""]
        cells = [*head, spec, *(f"{time:.3f}" for time in (forward, both - forward, both)), f"{both / of_plain[1]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by cuDNN."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v)


def perturbed(text: str) -> Attend:
    """Attention with a regulariser."""
    spec = parse(text)
    return lambda q, k, v: attention(q, k, v, spec)


def forward_and_both(attend: Attend, tensors: Tensors) -> tuple[Callable[[], None], Callable[[], None]]:
    """Some calls of the forward alone, and of forward and backward."""

    def forward() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                attend(*tensors.inputs)

    def both() -> None:
        for _ in range(CALLS):
            torch.autograd.grad(attend(*tensors.inputs), tensors.inputs, tensors.grad)

    forward(), both()
    return forward, both


def medians(graphs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Milliseconds of one call of each; they take turns."""
    clock = clock_for("cuda")
    taken: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for replay, own in zip(graphs, taken, strict=True):
            replay()
            own.append(1000 * clock(replay) / CALLS)
    return [statistics.median(own) for own in taken]


if __name__ == "__main__":
    sys.exit(main())
