"""One small call of every kernel, forward and backward: a program to run under compute-sanitizer.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests/torch/kernels/small_calls.py
PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python tests/torch/kernels/small_calls.py

An argument restricts it to the specs that contain it, as `blur`.
"""

from __future__ import annotations

import sys

import torch

import attentiondrop as ad
from attentiondrop.torch import attention
from attentiondrop.torch.fused import amended_hard

SPECS = [
    "hard(p=0.5,k=3)",
    "hard(p=0.5,k=3,fill=-inf)",
    "dropkey(p=0.5)",
    "noise(sigma=0.5)+dropkey(p=0.5,by=column)",
    "noise(sigma=0.5)+attndropout(p=0.3)",
    "dropattention(p=0.5,span=3)",
    "dropattention(p=0.5,by=column)",
    "blur(sigma_max=1.0)+hard(p=0.5,k=3)",
    "blur(sigma_max=1.0)",
]


def main() -> None:
    """Odd sizes, so that every tile has an edge; blur also under a causal mask, which has kernels of its own.

    Hard masking once with all of its own kernels, and once on torch's attention, which serves longer rows as a rule.
    """
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for dtype in (torch.bfloat16, torch.float32):
        call([text for text in SPECS if wanted in text], dtype)
    amended_hard.FEWEST_KEYS, amended_hard.HIGHEST_RATE = 64, 1.0
    call([text for text in SPECS[:2] if wanted in text], torch.bfloat16)


def call(texts: list[str], dtype: torch.dtype) -> None:
    """Forward and backward."""
    for text in texts:
        spec = ad.parse(text)
        for is_causal in (False, True) if "+" not in text else (False,):
            q, k, v = (torch.randn(1, 2, 70, 24, device="cuda", dtype=dtype) for _ in range(3))
            k[:, :, 40:60] = k[:, :, 10:30]  # ties
            inputs = [x.requires_grad_() for x in (q, k, v)]
            output = attention(*inputs, spec, is_causal=is_causal, backend="fused")
            output.sum().backward()
            assert all(x.isfinite().all() for x in (output, *(x.grad for x in inputs)))
            print(text, dtype, "causal" * is_causal, "ran")


if __name__ == "__main__":
    main()
