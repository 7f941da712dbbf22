"""A bias together with an additive mask, in 16 bits: their sum is as exact as the logits are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import numpy_draws, to_numpy
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.torch import attach, attention
from attentiondrop.torch.attach.multihead import join_masks
from attentiondrop.torch.call.leaves import LogitShape

SHAPE = LogitShape(2, 4, 6, 9)
SPECS = [
    ad.HardMasking(p=0.5, k=3),
    ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0),
    ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0, axes="both", edges="renormalize"),
    ad.DropHead(0.3),
    ad.DropKey(0.3),
]


def tensors(dtype: torch.dtype, size: float, shift: float = 0.0) -> tuple[list[Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    q = normal(2, 4, 6, 8)
    k, v = normal(2, 2, 4, 9, 8)
    bias, mask = size * normal(1, 4, 1, 9) + shift, size * normal(2, 1, 1, 9) + shift
    return [x.to(dtype) for x in (q, k, v)], bias.to(dtype), mask.to(dtype)


def wanted(inputs: list[Tensor], spec: ad.Spec, bias: Tensor, mask: Tensor, grad: Tensor) -> Any:
    draws, _ = numpy_draws(spec, 5, SHAPE)
    result = reference.attention(
        *(to_numpy(x) for x in inputs), spec, draws, attn_mask=to_numpy(mask.double()), bias=to_numpy(bias.double())
    )
    return result.output, result.gradients(to_numpy(grad))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("backend", ["eager", "fused", "auto"])
@pytest.mark.parametrize(
    "dtype, size, shift, error",
    [
        # Twice what rounding the output to its dtype makes of values around 2.
        (torch.bfloat16, 20.0, 0.0, 2**-6),
        # Logits of 80,000 are rounded to a 128th in float32.
        (torch.float16, 16.0, 4e4, 2**-6),
    ],
)
def test_against_the_oracle(
    spec: ad.Spec, backend: str, dtype: torch.dtype, size: float, shift: float, error: float
) -> None:
    inputs, bias, mask = tensors(dtype, size, shift)
    torch.manual_seed(5)
    output = attention(*inputs, spec, mask, backend=backend, bias=bias)
    want, _ = wanted(inputs, spec, bias, mask, torch.ones_like(output))
    assert torch.allclose(output.double(), torch.as_tensor(want), atol=error, rtol=0.0)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_gradient_of_a_bias_is_right_and_in_its_dtype(spec: ad.Spec) -> None:
    inputs, bias, mask = tensors(torch.bfloat16, 2.0)
    bias.requires_grad_()
    torch.manual_seed(5)
    output = attention(*inputs, spec, mask, bias=bias)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    output.backward(grad)
    _, gradients = wanted(inputs, spec, bias.detach(), mask, grad)
    want = torch.as_tensor(gradients[3]).sum(dim=(0, 2), keepdim=True)
    assert bias.grad is not None and bias.grad.dtype == torch.bfloat16
    assert torch.allclose(bias.grad.double(), want, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_two_masks_of_a_multihead_attention(dtype: torch.dtype) -> None:
    padding = torch.tensor([[3e4, 20.1, -torch.inf]]).to(dtype)
    rows = torch.tensor([[4e4, 0.07, 1.0], [torch.finfo(dtype).min, 0.0, 0.0], [0.0, 0.0, 0.0]]).to(dtype)
    joined = join_masks(padding, rows, torch.zeros(1, 3, 8, dtype=dtype), heads=2)
    want = padding.double().view(1, 1, 1, 3) + rows.double()
    want[..., 1, 0] = -torch.inf  # the lowest value of a dtype stands for that
    assert joined is not None and torch.equal(joined.double(), want.float().double())


def test_a_multihead_attention_trains_with_them() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True).to(torch.bfloat16)
    attach(layer, ad.HardMasking(p=0.5, k=2))
    x = torch.randn(2, 5, 16).to(torch.bfloat16)
    padding = torch.zeros(2, 5).masked_fill(torch.arange(5) > 3, -torch.inf).to(torch.bfloat16)
    rows = (20 * torch.randn(5, 5)).to(torch.bfloat16)
    output, _ = layer(x, x, x, key_padding_mask=padding, attn_mask=rows, need_weights=False)
    assert output.dtype == torch.bfloat16 and bool(output.isfinite().all())
