"""torch's own numerical check of the gradients, in float64, on every path."""

from __future__ import annotations

import pytest
import torch

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import AttentionDrop, attention

SPECS = [
    ad.HardMasking(p=0.4, k=3),
    ad.HardMasking(p=0.4, k=3, fill="-inf"),
    ad.BlurSmoothing(1.5),
    ad.BlurSmoothing(1.5, edges="renormalize", sampling="head"),
    ad.GaussianNoise(0.5),
    ad.DropKey(0.4),
    ad.DropHead(0.4),
    ad.AttentionDropout(0.4),
    ad.Compose([ad.BlurSmoothing(1.0), ad.HardMasking(p=0.4, k=2), ad.DropHead(0.3)]),
    ad.OneOf([ad.BlurSmoothing(1.0), ad.DropKey(0.4)]),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradcheck(spec: Spec, causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, n, 2, dtype=torch.float64, requires_grad=True) for n in (4, 5, 5))

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return attention(*inputs, spec, is_causal=causal)

    assert torch.autograd.gradcheck(call, (q, k, v))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradcheck_of_the_module(spec: Spec) -> None:
    logits = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, 5) < 0.7
    drop = AttentionDrop(spec)

    def call(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return drop(x, mask)

    assert torch.autograd.gradcheck(call, (logits,))
