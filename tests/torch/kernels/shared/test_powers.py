"""Powers of two against float64."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from attentiondrop.torch.kernels.shared.powers import power_of_two  # noqa: E402


@triton.jit
def powers_kernel(X, OUT, WIDE: tl.constexpr, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(OUT + place, power_of_two(tl.load(X + place), WIDE))


def powers(x: torch.Tensor, wide: bool) -> torch.Tensor:
    out = torch.empty_like(x)
    powers_kernel[(x.numel() // 1024,)](x, out, WIDE=wide, SIZE=1024)
    return out


@pytest.mark.parametrize("wide, units", [(True, 1.0), (False, 2.5)])
@pytest.mark.parametrize("lowest", [-120.0, -20.0, -1.0])
def test_relative_error(wide: bool, units: float, lowest: float, device: str) -> None:
    x = lowest * torch.rand(16 * 1024, generator=torch.Generator().manual_seed(0)).to(device)
    expected = torch.exp2(x.double())
    worst = ((powers(x, wide) - expected).abs() / expected).max().item()
    assert worst <= units * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("wide", [True, False])
def test_whole_numbers_and_what_is_no_number(wide: bool, device: str) -> None:
    x = torch.zeros(1024, device=device)
    x[:101] = -torch.arange(101.0, device=device)
    x[101], x[102], x[103] = -torch.inf, torch.nan, -1e30
    out = powers(x, wide)
    assert torch.equal(out[:101], torch.ldexp(torch.ones(101), x[:101].cpu().int()).to(device))
    assert out[101] == 0 and out[102].isnan() and out[103] == 0
