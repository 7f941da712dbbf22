"""Kernels and numbers that rounding or comparing would lose: a NaN, and a bias wider than 16 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attention

SPECS = [ad.HardMasking(p=0.5, k=3), ad.HardMasking(p=0.5, k=3, fill="-inf"), ad.DropKey(0.4)]


def tensors(device: str, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 20, 16, generator=g).to(device, dtype) for _ in range(3)]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_nan_shows(spec: ad.Spec, device: str) -> None:
    for is_causal in (False, True):
        q, k, v = tensors(device, torch.float16)
        q[0, 0, 7, 2] = torch.nan
        k[0, 1, 11, 3] = torch.nan
        found = []
        for backend in ("eager", "fused"):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            torch.manual_seed(1)
            output = attention(*leaves, spec, is_causal=is_causal, backend=backend)
            output.sum().backward()
            found.append((output.detach(), leaves[0].grad))
        (want, _), (have, have_q) = found
        assert torch.equal(have.isnan(), want.isnan())
        assert have_q is not None and bool(have_q[want.isnan()].isnan().all())


@pytest.mark.parametrize("spec", [ad.DropHead(0.3), ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0)], ids=str)
def test_a_wide_bias_is_not_rounded(spec: ad.Spec, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("on a GPU, torch's kernels would want the bias in 16 bits")

    monkeypatch.setattr(F, "scaled_dot_product_attention", refuse)
    q, k, v = tensors(device, torch.float16)
    g = torch.Generator().manual_seed(1)
    # Sums of 600, which 16 bits would round to halves.
    bias, mask = ((300 + torch.randn(1, 2, 20, 20, generator=g)).to(device, torch.float16) for _ in range(2))
    results = []
    for backend, dtype in (("eager", torch.float64), ("fused", torch.float16)):
        torch.manual_seed(1)
        results.append(
            attention(q.to(dtype), k.to(dtype), v.to(dtype), spec, mask.to(dtype), backend=backend, bias=bias.to(dtype))
        )
    assert torch.allclose(results[1].double(), results[0], atol=2**-8)
