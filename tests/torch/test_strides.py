"""Tensors whose last dimension is not contiguous in memory give what contiguous ones give, on every path of a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import attentiondrop as ad
from attentiondrop.torch import attention

SPECS = [
    "hard(p=0.3,k=3)",
    "blur(sigma_max=1.0)",
    "dropkey(p=0.3)",
    "noise(sigma=0.3)",
    "drophead(p=0.3)",
    "attndropout",
]


def turned(x: Tensor) -> Tensor:
    """The same values in another order in memory."""
    return x.detach().mT.contiguous().mT.requires_grad_()


def results(inputs: list[Tensor], grad: Tensor, text: str, backend: str, is_causal: bool) -> Iterator[Tensor]:
    torch.manual_seed(0)
    output = attention(*inputs, ad.parse(text), is_causal=is_causal, backend=backend)
    yield from (output, *torch.autograd.grad(output, inputs, grad))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("text", SPECS)
def test_any_order_in_memory(text: str, is_causal: bool) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(2, 4, 40, 16, requires_grad=True) for _ in range(3)]
    grad = torch.randn(2, 4, 40, 16)
    for which in range(4):
        given = [turned(x) if which in (place, 3) else x for place, x in enumerate(inputs)]
        want = results(inputs, grad, text, "eager", is_causal)
        have = results(given, turned(grad) if which == 3 else grad, text, "fused", is_causal)
        for one, other in zip(have, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
