"""What one call of `attention` costs the processor above plain SDPA at a tiny shape: bookkeeping, draws, autograd.

On a CPU: forward with gradients recorded, one thread. A call is timed by the processor time of its thread, and the
fastest of many calls counts, so that other processes disturb little.

On a GPU (`--device cuda`): forward and backward of a module with `attach`, in bfloat16. The GPU is quick at such
shapes, so the time between calls that nobody waits for is that of Python, of torch and of the driver. The fastest of
many runs of a few calls counts. "Compiled" rows call the code of torch.compile.

Rows take turns in every round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles
from attentiondrop.torch import attach, attention

#: On a GPU, so many calls are timed at once: few enough for the queue of the device.
RUN = 20
METHODS = ("hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "attndropout(p=0.1)")
PLAIN, COMPILED = "SDPA", ", compiled"


def main() -> int:
    """Time all rows in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", type=int, nargs=4, metavar=("B", "H", "N", "D"), help="2 2 16 8; on a GPU 8 3 65 64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300, help="calls of each row in a round")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_gpu = options.device == "cuda"
    shape = options.shape or ((8, 3, 65, 64) if is_gpu else (2, 2, 16, 8))
    rows = rows_of_sites(shape) if is_gpu else rows_of_calls(shape)
    timed, calls = (microseconds_of_run, options.calls // RUN) if is_gpu else (microseconds, options.calls)
    times: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(options.rounds + 1):
        for name, call in rows.items():
            fastest = min(timed(call) for _ in range(calls))
            if number:  # the first round warms up
                times[name].append(fastest)
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    where = environment(options.device, options.commit)
    what = "forward and backward of a module" if is_gpu else "forward with gradients recorded, one thread"
    how = f"runs of {RUN} calls" if is_gpu else "calls"
    lines = [
        f"# One call at {'x'.join(map(str, shape))}, {what}",
        "",
        f"{where.device}, torch {where.torch}, commit {where.commit}, {where.date}. Microseconds of processor time, "
        f"the fastest of {calls} {how} a round; median and 20 - 80 % quantiles of {options.rounds} rounds.",
        "",
        "| call | us | above SDPA | 20 - 80 % |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, found in times.items():
        plain_row = times[f"{PLAIN}{COMPILED}" if name.endswith(COMPILED) else PLAIN]
        above = Quantiles.of([one - plain for one, plain in zip(found, plain_row, strict=True)])
        lines.append(
            f"| {name} | {Quantiles.of(found).middle:.0f} | {above.middle:.0f} | {above.low:.0f} - {above.high:.0f} |"
        )
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"call-overhead-{where.slug}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def rows_of_calls(shape: Sequence[int]) -> dict[str, Callable[[], Any]]:
    """Calls of `attention` on a CPU."""
    q, k, v = (torch.randn(*shape, requires_grad=True) for _ in range(3))
    rows: dict[str, Callable[[], Any]] = {PLAIN: lambda: F.scaled_dot_product_attention(q, k, v)}
    for text in METHODS:
        spec = ad.parse(text)
        check(spec, q, k, v)
        rows[text] = lambda spec=spec: attention(q, k, v, spec)
    return rows


class Attention(nn.Module):
    """Attention of packed queries, keys and values [B, N, 3, H, D], as timm's has them."""

    def forward(self, packed: Tensor) -> Tensor:
        """The output [B, H, N, D]."""
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)


class Model(nn.Module):
    """A model with one site."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, packed: Tensor) -> Tensor:
        """The output [B, H, N, D]."""
        return self.attention(packed)


def rows_of_sites(shape: Sequence[int]) -> dict[str, Callable[[], Any]]:
    """Forward and backward of attached modules on a GPU, eager and compiled."""
    batch, heads, length, size = shape
    packed = torch.randn(batch, length, 3, heads, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    rows: dict[str, Callable[[], Any]] = {}
    for ending in ("", COMPILED):
        for text in (PLAIN, *METHODS):
            model = Model().train()
            if text != PLAIN:
                attach(model, text)
            if ending:
                model.compile(dynamic=False)
            rows[text + ending] = lambda model=model: torch.autograd.grad(model(packed), packed, grad)
    return rows


def check(spec: ad.Spec, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Time only what is right: compare with eager attention in float64, which has the same draws."""
    torch.manual_seed(1)
    have = attention(q, k, v, spec)
    torch.manual_seed(1)
    want = attention(q.double(), k.double(), v.double(), spec, backend="eager")
    torch.testing.assert_close(have.double(), want, rtol=1e-4, atol=1e-5)


def microseconds(call: Callable[[], Any]) -> float:
    """The processor time of one call."""
    start = time.thread_time()
    call()
    return 1e6 * (time.thread_time() - start)


def microseconds_of_run(call: Callable[[], Any]) -> float:
    """The time that each of several calls takes until the next one can follow. (The backward has another thread.)"""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(RUN):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * taken / RUN


if __name__ == "__main__":
    sys.exit(main())
