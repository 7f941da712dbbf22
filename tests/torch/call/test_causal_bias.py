"""Masks of torch.nn.attention.bias have no values: they must not be read as if they had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from attentiondrop.errors import ArgumentError, ShapeError
from attentiondrop.torch import attach, attention, views

SPECS = ["hard(p=0.0,k=2)", "blur(sigma_min=1.0,sigma_max=1.0)"]


def past(make: Any, rows: int, keys: int) -> Tensor:
    """What torch says that the mask shows."""
    return torch.ones(rows, keys, dtype=torch.bool).tril(0 if make is causal_upper_left else keys - rows)


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize(("rows", "keys"), [(6, 6), (4, 7)])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("spec", SPECS)
def test_it_is_the_mask_that_sdpa_takes_it_for(make: Any, rows: int, keys: int, heads: int, spec: str) -> None:
    q, k = torch.randn(2, heads, rows, 8), torch.randn(2, heads, keys, 8)
    got, wanted = (attention(q, k, k, spec, attn_mask=mask) for mask in (make(rows, keys), past(make, rows, keys)))
    torch.testing.assert_close(got, wanted)
    if spec == SPECS[0]:
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, k, attn_mask=make(rows, keys)))


class Attend(nn.Module):
    """A module that gives SDPA a mask without values, by queries without heads."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, 2:], x, x, attn_mask=self.make(x.shape[1] - 2, x.shape[1]))


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_attached_modules_may_use_it(make: Any) -> None:
    """Also with two views, where masks of the size of the batch would be split."""
    module, x = Attend(make).train(), torch.randn(2, 7, 8)
    wanted = F.scaled_dot_product_attention(x[:, 2:], x, x, attn_mask=past(make, 5, 7))
    with attach(module, SPECS[0]):
        torch.testing.assert_close(module(x), wanted)
        for view in views(module, x[:1]):
            torch.testing.assert_close(view, wanted[:1])


def test_lengths_must_fit() -> None:
    x = torch.randn(1, 2, 6, 8)
    with pytest.raises(ShapeError, match=r"a CausalBias of \[6, 6\] rows and keys, received one of \[5, 6\]"):
        attention(x, x, x, SPECS[0], attn_mask=causal_lower_right(5, 6))
    with pytest.raises(ArgumentError, match="is_causal: expected False"):
        attention(x, x, x, SPECS[0], attn_mask=causal_upper_left(6, 6), is_causal=True)


def test_a_mask_for_more_rows_and_keys_is_read_as_sdpa_reads_it() -> None:
    x = torch.randn(1, 2, 6, 8)
    for mask in (causal_upper_left(16, 16), causal_lower_right(16, 16), causal_upper_left(16, 20)):
        wanted = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        torch.testing.assert_close(attention(x, x, x, SPECS[0], attn_mask=mask), wanted)


@pytest.mark.no_cover
def test_compiled() -> None:
    x = torch.randn(1, 2, 6, 8)

    def attend(x: Tensor) -> Tensor:
        return attention(x, x, x, SPECS[0], attn_mask=causal_upper_left(6, 6))

    torch.testing.assert_close(torch.compile(attend, backend="aot_eager")(x), attend(x))
