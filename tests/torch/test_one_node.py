"""Eager attention as one node of autograd, and calls that look like an earlier one: both change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import Blocks, attention, known_routes
from attentiondrop.torch.eager import attention as eager
from attentiondrop.torch.eager import regularisers

SPECS = [
    "hard(p=0.3,k=3)",
    "hard(p=0.3,k=3,fill=-inf)",
    "hard(p=0.3,k=99)",
    "dropkey(p=0.4)",
    "attndropout(p=0.3)",
    "blur(sigma_max=0.9)",
    "blur(sigma_max=0.9,edges=renormalize)",
    "hard(p=0.3,k=3)+attndropout(p=0.1)",
]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_routes, "_known", {})


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call this to have single operations recorded, and no call known."""

    def switch() -> None:
        monkeypatch.setattr(eager, "alone", lambda call: None)
        monkeypatch.setattr(regularisers, "is_recorded_as_usual", lambda *tensors: False)
        monkeypatch.setattr(known_routes, "_known", {})
        monkeypatch.setattr(known_routes, "alone", lambda call: None)

    return switch


def inputs(packed: bool = False) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    if packed:
        x = torch.randn(2, 7, 3, 2, 4, dtype=torch.float64, requires_grad=True)
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
    else:
        x = torch.randn(3, 2, 2, 7, 4, dtype=torch.float64, requires_grad=True)
        q, k, v = x.unbind(0)
    return x, (q, k, v)


def both(text: str, backend: str, packed: bool, causal: bool) -> list[Tensor]:
    """Output and gradient of a first call and of one like it, with other draws."""
    found = []
    for seed in (1, 2):
        x, qkv = inputs(packed)
        torch.manual_seed(seed)
        output = attention(*qkv, ad.parse(text), is_causal=causal, backend=backend)
        found += [output, *torch.autograd.grad((output * output.detach().cos()).sum(), x)]
    return found


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_they_equal_single_operations(text: str, packed: bool, causal: bool, operations: Callable[[], None]) -> None:
    found = {backend: both(text, backend, packed, causal) for backend in ("auto", "eager")}
    operations()
    for backend, have in found.items():
        assert not torch.equal(have[0], have[2]), "the second call, which is known, has draws of its own"
        want = both(text, backend, packed, causal)
        assert all(torch.equal(*pair) for pair in zip(have, want, strict=True))


@pytest.mark.parametrize("text", SPECS[:6])
def test_second_derivatives_are_those_of_the_operations(text: str) -> None:
    _, qkv = inputs()
    leaves = [x.detach()[:1, :1, :4].clone().requires_grad_() for x in qkv]

    def call(*tensors: Tensor) -> Tensor:
        torch.manual_seed(5)  # with which every spec drops something
        return attention(*tensors, ad.parse(text), backend="eager")

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)
    # That check compares the recorded gradient with itself: whether it is the right one, only the plain one tells.
    grad = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    plain, recorded = (torch.autograd.grad(call(*leaves), leaves, grad, create_graph=graph) for graph in (False, True))
    assert all(torch.allclose(*pair, rtol=1e-12, atol=1e-12) for pair in zip(plain, recorded, strict=True))


def test_a_call_recomputed_by_checkpointing_may_be_known_by_then() -> None:
    for text in SPECS:
        results = []
        for repeat in (False, True):
            x, qkv = inputs()
            torch.manual_seed(1)
            spec = ad.parse(text)
            output = checkpoint(attention, *qkv, spec, use_reentrant=False) if repeat else attention(*qkv, spec)
            results.append(torch.autograd.grad(output.square().sum(), x)[0])
            known_routes._known.clear()
        assert torch.equal(*results)


def test_only_calls_that_look_alike_are_known() -> None:
    _, (q, k, v) = inputs()
    spec = ad.HardMasking(p=0.3, k=3)
    attention(q, k, v, spec)
    assert len(known_routes._known) == 1
    attention(q, k, v, spec)
    assert len(known_routes._known) == 1
    attention(q, k, v, ad.HardMasking(p=0.2, k=3))
    attention(q[:, :, :3], k, v, spec)
    assert len(known_routes._known) == 3
    with pytest.raises(ad.AttentionDropError, match="key and value need the same length"):
        attention(q, k, v[:, :, :3], spec)
    with pytest.raises(ad.AttentionDropError, match=r"generator: expected a .*Generator, received 5"):
        attention(q, k, v, spec, generator=5)
    with torch.autocast("cpu"):
        attention(q.float(), k.float(), v.float(), spec)
    attention(q, k, v, spec, attn_mask=torch.ones(7, 7, dtype=torch.bool))
    attention(q, k, v, ad.OneOf([spec, ad.DropKey(0.2)]))
    assert len(known_routes._known) == 3, "masks, autocast and gates are not part of how a call looks"


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.arange(7) != 3},
        {"bias": torch.linspace(-2, 2, 7)},
        {"softcap": 0.5},
        {"sinks": torch.ones(2)},
        {"window": (2, 1)},
        {"blocks": Blocks(torch.eye(7) > 0, 1)},
        {"dropout_p": 0.5},
        {"is_causal": True},
        {"scale": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_option_is_forgotten_after_a_call_without_it(options: dict[str, Any]) -> None:
    _, qkv = inputs()
    spec = ad.HardMasking(p=0.3, k=3)

    def output(**given: Any) -> Tensor:
        torch.manual_seed(1)
        return attention(*qkv, spec, **given).detach()

    expected, plain = output(**options), output()
    assert not torch.equal(expected, plain)
    assert torch.equal(output(**options), expected) and torch.equal(output(), plain)
    known_routes._known.clear()
    output()
    assert torch.equal(output(**options), expected)
