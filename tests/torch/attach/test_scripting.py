"""`torch.jit.script` of an attached model: the script of the model itself, made in evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach.sites import site_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch calls its scripts deprecated


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return helper(F.scaled_dot_product_attention(q, k, v))


def helper(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


class Switch(Own):
    """As in timm: a switch between SDPA and a softmax."""

    __constants__ = ["fused_attn"]  # for TorchScript

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused_attn = fused

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused_attn:
            return helper(F.scaled_dot_product_attention(q, k, v))
        return helper((q @ k.transpose(-2, -1)).softmax(-1) @ v)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        lambda: nn.Sequential(Own()),
        lambda: nn.Sequential(Switch(True)),
        lambda: nn.Sequential(Switch(False)),
    ],
    ids=["multihead", "sdpa", "switch on", "switch off"],
)
def test_script(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 5, 16)
    plain = torch.jit.script(model)
    attach(model, "hard(p=0.4,k=3)")
    script = torch.jit.script(model)
    assert torch.equal(script(x), plain(x))
    assert script.state_dict().keys() == plain.state_dict().keys()
    assert any(site_of(module) is not None for module in model.modules()), "scripting detached the model"
    model.train()
    torch.manual_seed(1)
    assert not torch.equal(model(x), model(x))
    with pytest.raises(
        ad.AttachError, match=r"torch\.jit\.script: \w+ is attached and in training mode.*model\.eval\(\)"
    ):
        torch.jit.script(model)


def test_the_signature_is_the_models_own() -> None:
    """Others look at it, too, in order to know which arguments a module takes."""
    model = Own()
    expected = inspect.signature(model.forward)
    attach(model, "hard(p=0.4,k=3)")
    assert inspect.signature(model.forward) == expected
