"""A compiled model that meets one length after the other: torch compiles twice, the second time for all lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attach
from tests.torch.compiler import needs_compiler

SPECS = [ad.HardMasking(p=0.3, k=3), ad.BlurSmoothing(sigma_max=1.0), ad.DropKey(p=0.2), ad.AttentionDropout(p=0.2)]


class Block(nn.Module):
    """Attention of its inputs to themselves."""

    def __init__(self, width: int = 32, heads: int = 4, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.heads, self.is_causal = nn.Linear(width, 3 * width), heads, is_causal
        #: A number that torch does not know when it compiles for all lengths and numbers.
        self.dropout = 0.0

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.is_causal)
        return x + found.transpose(1, 2).reshape(x.shape)


def results(call: nn.Module, model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(x.shape[1])
    output = call(x)
    return [output, *torch.autograd.grad(output.square().sum(), list(model.parameters()))]


def check(
    spec: Spec,
    lengths: Sequence[int],
    is_causal: bool = False,
    backend: str = "aot_eager",
    dynamic: bool | None = None,
    blocks: int = 2,
    width: int = 32,
    **to: Any,
) -> int:
    """Compare with the eager model at each length. Returns how often torch compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width, is_causal=is_causal) for _ in range(blocks))).to(**to).train()
    tolerance = 1e-5 if to.get("dtype") is None else 1e-2
    attach(model, spec)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=dynamic)
    for length in lengths:
        x = torch.randn(2, length, width).to(**to)
        for have, want in zip(results(compiled, model, x), results(model, model, x), strict=True):
            assert (have - want).norm() <= tolerance * want.norm(), length
    return counter.frame_count


#: Without the backward graph of a compiler, and with one block, a case takes seconds instead of a minute.
QUICK = {"backend": "eager", "blocks": 1}


@pytest.mark.parametrize(("spec", "is_causal"), [(SPECS[0], False), (SPECS[1], True)])
def test_two_compilations_serve_all_lengths(spec: Spec, is_causal: bool) -> None:
    assert check(spec, (5, 9, 16, 33, 40), is_causal, **QUICK) == 2


def test_a_graph_for_all_lengths_and_numbers_is_whole() -> None:
    assert check(SPECS[2], (9, 16, 33, 40), dynamic=True, **QUICK) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_two_compilations_serve_all_lengths_of_every_path(spec: Spec, is_causal: bool) -> None:
    assert check(spec, (5, 9, 16, 33, 40), is_causal) == 2
    assert check(spec, (9, 16, 33, 40), is_causal, dynamic=True) <= 2


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_code_of_inductor_serves_all_lengths(spec: Spec) -> None:
    assert check(spec, (5, 9, 33, 64), backend="inductor") == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_lengths_of_all_paths_on_a_gpu(spec: Spec) -> None:
    """Short rows, longer ones, and those that amend torch's own attention."""
    lengths = (40, 70, 200, 256, 257, 300, 1100)
    # The kernels for short rows serve heads of 16, not those of 8.
    for width in (32, 64):
        check(spec, lengths, width=width, device="cuda", dtype=torch.bfloat16)
    check(spec, lengths, dynamic=True, width=64, device="cuda", dtype=torch.bfloat16)
