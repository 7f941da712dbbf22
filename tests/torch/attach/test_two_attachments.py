"""A second attachment leaves alone what the first one has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach, attention

BLUR, HARD = "blur(sigma_min=1.0,sigma_max=1.0)", "hard(p=0.0,k=2)"


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x) + self.inner(x)


def test_a_module_around_a_site_of_the_first_becomes_no_site_of_the_second() -> None:
    """It would perturb the attention inside twice."""
    model, x = nn.ModuleDict({"a": Outer(), "b": Inner()}).train(), torch.randn(2, 2, 8, 4)
    with pytest.warns(ad.AttentionDropWarning, match="contains other attention modules"):
        attach(model, {"b": None, "*": BLUR})
    with pytest.warns(ad.AttentionDropWarning, match="contains other attention modules"):
        second = attach(model, HARD)
    assert [site.name for site in second.sites] == ["b"]
    plain = F.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(model["a"](x), plain + attention(x, x, x, BLUR))
    torch.testing.assert_close(model["b"](x), plain)  # the second one is the identity
