"""Each bad input of `attention` gives its error."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import attentiondrop as ad
from attentiondrop.torch import attention
from attentiondrop.torch.fused import repeated_short

Q = torch.randn(2, 4, 6, 8)
HARD = ad.HardMasking()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: attention(Q, Q, Q, 0.1), ad.ArgumentError, "drop: expected a spec such as"),
        (
            lambda: attention(Q, Q, Q, HARD, backend="triton"),
            ad.ArgumentError,
            "backend: expected one of 'auto', 'eager', 'fused'",
        ),
        (lambda: attention(Q, Q, Q, HARD, dropout_p=1.5), ad.ArgumentError, "dropout_p: expected a number in [0, 1]"),
        (lambda: attention(Q, Q, Q, HARD, scale="1"), ad.ArgumentError, "scale: expected a number, received '1'"),
        (lambda: attention(Q, Q, Q, HARD, scale=math.nan), ad.ArgumentError, "scale: expected a number, received nan"),
        (
            lambda: attention(Q, Q, Q, HARD, scale=torch.nn.Parameter(torch.tensor(0.5))),
            ad.ArgumentError,
            "scale: expected a number (one that is learned: attention(query * number, ..., scale=1.0))",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, sinks=[0.0] * 4),
            ad.ArgumentError,
            "sinks: expected a floating-point tensor, received 'list'",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, sinks=torch.ones(4).bool()),
            ad.ArgumentError,
            "sinks: expected a floating-point tensor, received torch.bool",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, sinks=torch.zeros(3)),
            ad.ArgumentError,
            "sinks: expected a logit for each of 4 heads, received [3]",
        ),
        (
            lambda: attention(Q.long(), Q, Q, HARD),
            ad.ArgumentError,
            "query: expected a floating-point tensor, received torch.int64",
        ),
        (
            lambda: attention(Q, [1.0], Q, HARD),
            ad.ArgumentError,
            "key: expected a floating-point tensor, received 'list'",
        ),
        (
            lambda: attention(Q, Q.double(), Q, HARD),
            ad.ArgumentError,
            "key, value: expected the dtype of query, torch.float32",
        ),
        (
            lambda: attention(Q, Q, Q.half(), HARD),
            ad.ArgumentError,
            "key, value: expected the dtype of query, torch.float32, received 'torch.float32, torch.float16'",
        ),
        (lambda: attention(Q[0, 0, 0], Q, Q, HARD), ad.ShapeError, "query: expected at least 2 dimensions"),
        (lambda: attention(Q, Q[0], Q, HARD), ad.ShapeError, "need the same number of dimensions"),
        (lambda: attention(Q, Q[..., :4], Q, HARD), ad.ShapeError, "query and key need the same head size"),
        (lambda: attention(Q, Q, Q[:, :, :5], HARD), ad.ShapeError, "key and value need the same length"),
        (
            lambda: attention(Q, Q.repeat(2, 1, 1, 1)[:3], Q, HARD),
            ad.ShapeError,
            "batch dimensions do not belong together",
        ),
        (
            lambda: attention(Q, Q[:, :2], Q[:, :2], HARD),
            ad.ShapeError,
            "heads differ (enable_gqa=True for grouped queries)",
        ),
        (
            lambda: attention(Q, Q[:, :3], Q[:, :3], HARD, enable_gqa=True),
            ad.ShapeError,
            "enable_gqa needs query heads that are a multiple",
        ),
        (
            lambda: attention(Q, Q[:, :2], Q[:, :1], HARD, enable_gqa=True),
            ad.ShapeError,
            "enable_gqa needs query heads that are a multiple of the key and value heads",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, attn_mask=torch.ones(6, 5).bool()),
            ad.ShapeError,
            "attn_mask: expected a shape that broadcasts to [2, 4, 6, 6], received [6, 5]",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, attn_mask=torch.ones(6, 6).long()),
            ad.ArgumentError,
            "attn_mask: expected a boolean or floating-point tensor, received torch.int64",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, bias=torch.ones(3, 6, 6)),
            ad.ShapeError,
            "bias: expected a shape that broadcasts to",
        ),
        (
            lambda: attention(Q, Q, Q, HARD, attn_mask=torch.ones(6, 6).bool(), is_causal=True),
            ad.ArgumentError,
            "is_causal: expected False where attn_mask is given",
        ),
        (
            lambda: attention(Q, Q, Q, ad.BlurSmoothing(axes="both"), is_causal=True),
            ad.ArgumentError,
            'axes: expected "keys" under a causal mask',
        ),
        (
            lambda: attention(Q, Q, Q, ad.BlurSmoothing(axes="both"), attn_mask=torch.ones(6, 6).bool().tril()),
            ad.ArgumentError,
            'axes: expected "keys" under a causal mask',
        ),
        (
            lambda: attention(Q, Q, Q, ad.BlurSmoothing(axes="both"), attn_mask=torch.eye(6).bool()),
            ad.ArgumentError,
            'axes: expected "keys" under a mask that hides different keys',
        ),
        (
            lambda: attention(Q, Q, Q, ad.Consistency()),
            ad.ArgumentError,
            "drop: expected a spec that acts on attention (consistency acts on model outputs)",
        ),
    ],
)
def test_message(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)
    assert isinstance(error.value, ad.AttentionDropError) and isinstance(error.value, ValueError)


@pytest.mark.parametrize("drop", ["hard(p=0.5,k=3)", "blur", "drophead"])
def test_a_scale_may_be_any_kind_of_number(drop: str) -> None:
    scale = torch.tensor(0.5)
    for given in (scale, np.float32(0.5), np.float64(0.5)):
        results = []
        for known in (given, given, 0.5):
            torch.manual_seed(1)
            results.append(attention(Q, Q, Q, drop, scale=known))
        assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[2])
    # A call that is known by its looks does not keep the number of a tensor.
    scale.fill_(2.0)
    torch.manual_seed(1)
    found = attention(Q, Q, Q, drop, scale=scale)
    torch.manual_seed(1)
    assert torch.equal(found, attention(Q, Q, Q, drop, scale=2.0))


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are a prototype
        return torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=layout).transpose(1, 2)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.parametrize("drop", [HARD, ad.BlurSmoothing(), ad.Compose([ad.DropHead(), ad.DropKey()])], ids=str)
def test_nested_tensors_are_refused(drop: ad.Spec, layout: torch.layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(repeated_short._known, ("another call",), None)
    q = nested(layout)
    message = r"query: expected padded sequences with a mask for .* received 'a nested tensor'"
    with pytest.raises(ad.ArgumentError, match=message):
        attention(q, q, q, drop)
    if layout is torch.jagged:
        assert attention(q, q, q, drop, training=False).is_nested


def test_heads_of_nested_tensors_are_dropped_as_of_padded_ones() -> None:
    q, drop = nested(torch.jagged), ad.DropHead(0.5)
    padded = torch.nested.to_padded_tensor(q.transpose(1, 2), 0.0).transpose(1, 2)
    mask = torch.arange(5) < torch.tensor([3, 5]).view(2, 1, 1, 1)
    torch.manual_seed(1)
    output = attention(q, q, q, drop)
    torch.manual_seed(1)
    expected = attention(padded, padded, padded, drop, attn_mask=mask)
    for length, found, wanted in zip((3, 5), output.unbind(), expected, strict=True):
        torch.testing.assert_close(found, wanted[:, :length])


def test_both_axes_are_refused_for_eager_too() -> None:
    with pytest.raises(ad.ArgumentError, match="axes"):
        attention(Q, Q, Q, ad.BlurSmoothing(axes="both"), is_causal=True, backend="eager")


def test_a_scale_may_be_a_number_that_a_compiler_does_not_know() -> None:
    q = torch.randn(2, 4, 10, 8)
    drop = ad.DropKey(p=0.5)

    def by_length(q: Tensor) -> Tensor:
        return attention(q, q, q, drop, scale=q.shape[-2] ** -0.5)

    traced = make_fx(by_length, tracing_mode="symbolic")(q)
    assert traced(q[:, :, :7]).shape == (2, 4, 7, 8)

    def by_tensor(q: Tensor, scale: Tensor) -> Tensor:
        return attention(q, q, q, drop, scale=scale)

    def by_item(q: Tensor, scale: Tensor) -> Tensor:
        return attention(q, q, q, drop, scale=scale.item())

    for function in (by_tensor, by_item):
        torch.manual_seed(0)
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            found = torch.compile(function, backend="eager", fullgraph=True)(q, torch.tensor(0.4))
        torch.manual_seed(0)
        assert torch.allclose(found, attention(q, q, q, drop, scale=0.4))
