"""Time each attention kernel over tile sizes, on a CUDA device. The sizes in `kernels/shared/tiles.py` come from this.

    python benchmarks/tune.py [--shape B,H,N,D ...] [--kernel select pick forward query key] [--spec "hard(p=0.1,k=5)"]

Compiling takes most of the time, so worker processes fill Triton's cache first; then one process times everything.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from functools import partial
from itertools import product

import torch
import triton
from torch import Tensor

import attentiondrop as ad
from attentiondrop.torch.call.leaves import active_leaves
from attentiondrop.torch.call.stages import Plan
from attentiondrop.torch.dispatch import plan_of
from attentiondrop.torch.fused.slots import drop_of, weight_drop_of
from attentiondrop.torch.kernels.decide import launch
from attentiondrop.torch.kernels.shared.tiles import Tiles, pick_tiles

_SELECT = [
    Tiles(rows, columns, warps, stages, 4)
    for rows, columns, warps in (
        (64, 32, 4),
        (64, 64, 8),
        (64, 16, 4),
        (32, 32, 4),
        (64, 64, 4),
        (128, 16, 4),
        (128, 32, 8),
        (16, 64, 1),
        (16, 32, 1),
    )
    for stages in (2, 3)
]
CANDIDATES = {
    "select": _SELECT,
    "pick": [tiles._replace(depth=depth) for tiles in _SELECT for depth in (3, 4)],
    "forward": [
        Tiles(rows, columns, warps, stages)
        for rows, columns, warps in ((128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 64, 4), (64, 128, 4), (128, 32, 4))
        for stages in (2, 3)
    ] + [Tiles(rows, 64, warps, stages, 0, 128) for rows, warps in ((128, 8), (64, 4)) for stages in (2, 3)],
    "query": [
        Tiles(rows, columns, warps, stages)
        for rows, columns, warps in ((64, 64, 4), (128, 64, 8), (128, 32, 4), (64, 32, 4), (64, 128, 4), (128, 128, 8))
        for stages in (2, 3)
    ] + [Tiles(64, columns, 4, 3, 0, registers) for columns, registers in ((64, 168), (32, 96))],
    "key": [
        Tiles(rows, columns, warps, stages)
        for rows, columns, warps in ((64, 128, 8), (64, 64, 4), (64, 32, 4), (128, 64, 8), (128, 128, 8), (32, 64, 4))
        for stages in (2, 3)
    ] + [Tiles(64, columns, 4, 2, 0, registers) for columns, registers in ((64, 168), (32, 128), (32, 168))],
}  # fmt: skip


class Problem:
    """Inputs of one shape, and everything that each kernel needs to run alone."""

    def __init__(self, shape: list[int], spec: ad.Spec, causal: bool) -> None:
        make = lambda: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        self.q, self.k, self.v, self.grad = make(), make(), make(), make()
        seed = torch.tensor(12345, device="cuda")
        plan = plan_of(active_leaves(spec, seed, torch.float32))
        assert isinstance(plan, Plan)
        drop = drop_of(plan.drop, shape[2])
        streams = [0 if leaf else -1 for leaf in (plan.noise, plan.drop, plan.dropout)] + [-1]
        scale = 1 / math.sqrt(shape[-1])
        self.call = launch.Decisions(
            None, None, seed, None, [0.1] * 4, streams, drop.kind, drop.top, causal, scale
        )._replace(dropout=weight_drop_of(plan.dropout, shape[2]))
        self.output, self.lse, self.notes = launch.forward(self.q, self.k, self.v, self.call)
        self.tables = launch.make_tables(self.q, self.k.shape[2], self.call)
        self.common = launch.common_arguments(self.q, self.k, self.call)
        self.lost = torch.empty(*shape[:3], max(self.call.top, 1), dtype=torch.int32, device="cuda")
        self.delta = torch.empty_like(self.lse)
        self.gradients = [torch.empty_like(self.q) for _ in range(3)]

    def run(self, kernel: str, tiles: Tiles) -> None:
        """Launch one kernel."""
        shared = (self.call, self.tables, self.notes, self.common, tiles)
        if kernel == "pick":
            again = pick_tiles(self.q, self.k)[1]
            launch.run_pick(self.q, self.k, self.call, self.tables, self.notes, self.lost, tiles, again)
        elif kernel == "select":
            launch.run_select(self.q, self.k, *shared)
        elif kernel == "forward":
            launch.run_forward(self.q, self.k, self.v, self.output, self.lse, *shared)
        elif kernel == "query":
            launch.run_query(
                self.grad, self.q, self.k, self.v, self.output, self.lse, self.delta, self.gradients[0], *shared
            )
        else:
            launch.run_key(self.grad, self.q, self.k, self.v, self.lse, self.delta, *self.gradients[1:], *shared)


def milliseconds(run: object) -> float:
    """Median device time."""
    return float(triton.testing.do_bench(run, warmup=15, rep=60, return_mode="median"))


def baselines(problem: Problem, causal: bool) -> None:
    """SDPA at the same shape, forward and forward with backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs = [x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        for p in (0.0, 0.1):

            def forward(p: float = p) -> Tensor:
                return scaled_dot_product_attention(*inputs, dropout_p=p, is_causal=causal)

            with sdpa_kernel([backend]):
                there = milliseconds(forward)
                both = milliseconds(lambda f=forward: torch.autograd.grad(f(), inputs, problem.grad))
            print(f"  {backend.name:<17} dropout {p}: forward {there:.3f}, with backward {both:.3f} ms", flush=True)


def main() -> None:
    """Print the best tiles of each kernel, all times with --all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="*", default=["256,12,197,64", "16,16,1024,64", "4,16,4096,64"])
    parser.add_argument("--kernel", nargs="*", default=list(CANDIDATES), choices=list(CANDIDATES))
    parser.add_argument("--spec", default="hard(p=0.1,k=5)")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--part", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is None:
        command = [sys.executable, __file__, *sys.argv[1:]]
        workers = [subprocess.Popen([*command, "--part", str(part)]) for part in range(args.workers)]
        for worker in workers:
            worker.wait()
    spec = ad.parse(args.spec)
    for text in args.shape:
        shape = [int(size) for size in text.split(",")]
        if args.part is not None:
            shape = [1, 1, *shape[2:]]
        problem = Problem(shape, spec, args.causal)
        if args.part is None:
            print(f"{text} {args.spec}{' causal' * args.causal}", flush=True)
            baselines(problem, args.causal)
        for number, (kernel, place) in enumerate(product(args.kernel, range(40))):
            if place >= len(CANDIDATES[kernel]) or (args.part is not None and number % args.workers != args.part):
                continue
            tiles = CANDIDATES[kernel][place]
            try:
                problem.run(kernel, tiles)
            except triton.runtime.errors.OutOfResources as error:
                if args.part is None:
                    print(f"  {kernel:<8} {tuple(tiles)}: {error}", flush=True)
                continue
            if args.part is None:
                print(
                    f"  {kernel:<8} {tuple(tiles)}: {milliseconds(partial(problem.run, kernel, tiles)):.3f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
