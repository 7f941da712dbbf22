"""The cosine of the noise: exact, and on a GPU that of CUDA."""

from __future__ import annotations

import pytest
import torch
from devices import only_on_gpu
from torch import Tensor

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from attentiondrop.torch.kernels.shared.compiler_options import OPTIONS  # noqa: E402
from attentiondrop.torch.kernels.shared.cosine import cosine  # noqa: E402


@triton.jit
def cosines_kernel(OUT, step, OURS: tl.constexpr, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    turn = 6.283185307179586 * ((place * step).to(tl.float32) * 5.9604644775390625e-08)
    result = cosine(turn) if OURS else tl.cos(turn)
    tl.store(OUT + place, result)


def cosines(count: int, device: str, ours: bool) -> Tensor:
    """Of `count` angles spread over a full turn. All that the noise uses are 2^24."""
    out = torch.empty(count, device=device)
    cosines_kernel[(count // 1024,)](out, 2**24 // count, OURS=ours, SIZE=1024, **OPTIONS)
    return out


def test_exact_to_rounding(device: str) -> None:
    count = 2**14
    turn = torch.tensor(6.283185307179586) * (torch.arange(count, dtype=torch.float32) / count)
    error = (cosines(count, device, True).cpu() - turn.double().cos()).abs().max().item()
    assert error <= torch.finfo(torch.float32).eps


@only_on_gpu
def test_same_bits_as_the_cosine_of_cuda(device: str) -> None:
    assert torch.equal(cosines(2**24, device, True), cosines(2**24, device, False))
