"""Launch the kernels for short rows again and again, with random sizes: do they hang, and are all values finite?

    short_rows_soak.py [--launches 100000]
    compute-sanitizer --tool memcheck python benchmarks/short_rows_soak.py --launches 64
    compute-sanitizer --tool racecheck python benchmarks/short_rows_soak.py --launches 32

Under Compute Sanitizer a launch takes about a second. Do not choose kernels by a part of their name there, unless you
know that it occurs: ours are called `forward`, `backward` and `backward_wgmma`, and a filter that matches none finds no
hazards. Racecheck reports two pairs that are no errors: `publish` and `look_at`, a flag with release and acquire, and
`store_16` and `load_word` in hard masking, where a word is read and not used.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

import torch

from attentiondrop import Spec, parse
from attentiondrop.bench.environment import environment
from attentiondrop.torch import attention
from attentiondrop.torch.kernels.short.variants import MOST_KEYS

SPECS = ("hard(p=0.1,k=5)", "hard(p=0.3,k=10,fill=-inf)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "attndropout(p=0.1)")
#: A forward and a backward.
LAUNCHES_OF_A_CALL = 2
#: It waits for the GPU after so many sizes, so that the lines of progress are true.
WAIT_EVERY = 100


def main(given: Sequence[str] | None = None) -> int:
    """Print how far it is, then one line. Status 1 if a value was not finite."""
    options = arguments().parse_args(given)
    if not torch.cuda.is_available():
        print("short_rows_soak.py: needs a CUDA device", file=sys.stderr)
        return 2
    specs, draw = [parse(text) for text in options.specs], random.Random(options.seed)
    done, sizes, told, start = 0, 0, 0, time.monotonic()
    all_finite = torch.ones((), dtype=torch.bool, device="cuda")
    while done < options.launches:
        all_finite &= one_size(specs, draw, options.head_size)
        done, sizes = done + LAUNCHES_OF_A_CALL * len(specs), sizes + 1
        if sizes % WAIT_EVERY == 0:
            torch.cuda.synchronize()
        if 10 * done // options.launches > told:
            told = 10 * done // options.launches
            print(f"{done:,} launches, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    is_fine, where = bool(all_finite), environment("cuda", options.commit)
    print(
        f"{where.device}, driver {where.driver}, torch {where.torch}, commit {where.commit}, {where.date}: {done:,} "
        f"launches, {sizes:,} sizes, {time.monotonic() - start:.0f} s, "
        f"{'all values finite' if is_fine else 'VALUES NOT FINITE'}"
    )
    return 0 if is_fine else 1


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=100_000, help="at least so many (default: %(default)s)")
    parser.add_argument("--specs", nargs="+", default=list(SPECS), metavar="SPEC")
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def one_size(specs: Sequence[Spec], draw: random.Random, head_size: int) -> torch.Tensor:
    """A forward and a backward of each spec at a random size. Returns whether all values are finite, on the GPU."""
    batch, heads = draw.randint(1, 8), draw.randint(1, 6)
    rows, keys = draw.randint(1, MOST_KEYS), draw.randint(1, MOST_KEYS)
    q, k, v = (
        torch.randn(batch, heads, length, head_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for length in (rows, keys, keys)
    )
    finite = torch.ones((), dtype=torch.bool, device="cuda")
    for spec in specs:
        output = attention(q, k, v, spec, backend="fused")
        for each in (output, *torch.autograd.grad(output, (q, k, v), torch.ones_like(output))):
            finite &= each.isfinite().all()
    return finite


if __name__ == "__main__":
    sys.exit(main())
