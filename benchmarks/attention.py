"""Attention alone, forward and backward: ratios to plain SDPA from one run on this machine.

    python benchmarks/attention.py [--shape B H N D] [--device cuda] [--dtype bfloat16] [--repeats 20] [--compile]

Rows take turns within every repeat, so that a machine that slows down slows all of them down; the ratio of each repeat
is taken to the plain SDPA of the same repeat. The paper's listings are timed as it prints them.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def rows() -> dict[str, Attend]:
    """What is compared, the baseline first."""
    specs = ["blur(sigma_max=0.5)", "hard(p=0.1,k=5)", "dropkey(p=0.1)", "noise(sigma=0.1)", "attndropout(p=0.1)"]

    def ours(text: str, causal: bool) -> Attend:
        spec = ad.parse(text)
        return lambda q, k, v: attention(q, k, v, spec, is_causal=causal)

    return {
        "SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        "SDPA, dropout 0.1": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        "SDPA, causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "the paper's hard masking": papers_hard_masking,
        "the paper's blur": papers_blur,
        **{text: ours(text, causal=False) for text in specs},
        "blur(sigma_max=0.5), causal": ours("blur(sigma_max=0.5)", causal=True),
    }


def papers_hard_masking(q: Tensor, k: Tensor, v: Tensor, p: float = 0.1, top: int = 5) -> Tensor:
    """The PyTorch listing of the paper for variant 1."""
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    values, index = logits.topk(min(top, logits.shape[-1]), dim=-1)
    kept = (torch.rand_like(values) > p).to(logits.dtype)
    return F.softmax(logits * torch.ones_like(logits).scatter(-1, index, kept), dim=-1) @ v


def papers_blur(q: Tensor, k: Tensor, v: Tensor, sigma_max: float = 0.5, width: int = 5) -> Tensor:
    """The PyTorch listing of the paper for variant 2, which blurs both axes."""
    batch, heads, rows, columns = *q.shape[:3], k.shape[2]
    logits = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).view(batch * heads, 1, rows, columns)
    x = torch.arange(width, device=q.device) - (width - 1) / 2
    kernel = torch.exp(-0.5 * (x / (torch.rand(1, device=q.device) * sigma_max)) ** 2)
    kernel = (kernel / kernel.sum()).to(q.dtype)
    logits = F.conv2d(logits, kernel.view(1, 1, 1, width), padding=(0, width // 2))
    logits = F.conv2d(logits, kernel.view(1, 1, width, 1), padding=(width // 2, 0))
    return F.softmax(logits.view(batch, heads, rows, columns), dim=-1) @ v


def seconds(attend: Attend, inputs: list[Tensor], grad: Tensor) -> float:
    """One forward and backward."""
    cuda = grad.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    torch.autograd.grad(attend(*inputs), inputs, grad)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description="Ratios of attention times to plain SDPA, from one run.")
    parser.add_argument("--shape", type=int, nargs=4, default=[8, 6, 197, 64], metavar=("B", "H", "N", "D"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on a GPU, float32 on a CPU by default")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="every row under torch.compile")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    torch.manual_seed(0)
    inputs = [torch.randn(*args.shape, device=args.device, dtype=dtype, requires_grad=True) for _ in range(3)]
    grad = torch.randn(*args.shape, device=args.device, dtype=dtype)
    chip = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()} CPU"
    what = "forward and backward" + ", compiled" * args.compile
    print(f"{chip}, torch {torch.__version__}, {dtype}, B H N D = {args.shape}, {what}")

    table = {name: torch.compile(attend) if args.compile else attend for name, attend in rows().items()}
    times: dict[str, list[float]] = {name: [] for name in table}
    for repeat in range(args.repeats + 3):
        for name, attend in table.items():
            taken = seconds(attend, inputs, grad)
            if repeat >= 3:  # the first ones warm up
                times[name].append(taken)
    print(f"{'':<30} {'ms (median)':>12} {'ratio to SDPA (20 %, median, 80 %)':>36}")
    for name, values in times.items():
        ratios = sorted(value / base for value, base in zip(values, times["SDPA"], strict=True))
        low, middle, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.2, 0.5, 0.8))
        print(f"{name:<30} {1000 * statistics.median(values):>12.2f} {low:>18.2f} {middle:>8.2f} {high:>8.2f}")


if __name__ == "__main__":
    main()
