"""What one call of `attention` costs on a CPU above plain SDPA at a tiny shape: bookkeeping, draws, autograd.

Forward with gradients recorded, one thread. A call is timed by the processor time of its thread, and the fastest of
many calls counts, so that other processes disturb little. Rows take turns in every round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles
from attentiondrop.torch import attention

METHODS = ("hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "attndropout(p=0.1)")
PLAIN = "SDPA"


def main() -> int:
    """Time all rows in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs=4, default=(2, 2, 16, 8), metavar=("B", "H", "N", "D"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300, help="calls of each row in a round")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v = (torch.randn(*options.shape, requires_grad=True) for _ in range(3))
    rows: dict[str, Callable[[], Tensor]] = {PLAIN: lambda: F.scaled_dot_product_attention(q, k, v)}
    for text in METHODS:
        spec = ad.parse(text)
        check(spec, q, k, v)
        rows[text] = lambda spec=spec: attention(q, k, v, spec)
    times: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(options.rounds + 1):
        for name, call in rows.items():
            fastest = min(microseconds(call) for _ in range(options.calls))
            if number:  # the first round warms up
                times[name].append(fastest)
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    where = environment("cpu", options.commit)
    lines = [
        f"# One call at {'x'.join(map(str, options.shape))}, forward with gradients recorded, one thread",
        "",
        f"{where.device}, torch {where.torch}, commit {where.commit}, {where.date}. Microseconds of processor time, "
        f"the fastest of {options.calls} calls a round; median and 20 - 80 % quantiles of {options.rounds} rounds.",
        "",
        "| call | us | above SDPA | 20 - 80 % |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, found in times.items():
        above = Quantiles.of([one - plain for one, plain in zip(found, times[PLAIN], strict=True)])
        lines.append(
            f"| {name} | {Quantiles.of(found).middle:.0f} | {above.middle:.0f} | {above.low:.0f} - {above.high:.0f} |"
        )
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"call-overhead-{where.slug}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def check(spec: ad.Spec, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Time only what is right: compare with eager attention in float64, which has the same draws."""
    torch.manual_seed(1)
    have = attention(q, k, v, spec)
    torch.manual_seed(1)
    want = attention(q.double(), k.double(), v.double(), spec, backend="eager")
    torch.testing.assert_close(have.double(), want, rtol=1e-4, atol=1e-5)


def microseconds(call: Callable[[], Tensor]) -> float:
    """The processor time of one call."""
    start = time.thread_time()
    call()
    return 1e6 * (time.thread_time() - start)


if __name__ == "__main__":
    sys.exit(main())
