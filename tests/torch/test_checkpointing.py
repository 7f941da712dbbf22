"""Activation checkpointing of `attention`: the draws of the default generator are restored, others are refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import attentiondrop as ad
from attentiondrop.torch import attention

SPEC = ad.HardMasking(p=0.5, k=3)


def gradients(reentrant: bool | None, generator: torch.Generator | None = None) -> tuple[torch.Tensor | None, ...]:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def run(*x: torch.Tensor) -> torch.Tensor:
        return attention(*x, SPEC, generator=generator)

    output = run(*inputs) if reentrant is None else checkpoint(run, *inputs, use_reentrant=reentrant)
    output.square().sum().backward()
    return tuple(x.grad for x in inputs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_generator_is_refused_before_a_gradient_is_wrong(reentrant: bool) -> None:
    gradients(None, torch.Generator().manual_seed(1))  # on its own it may be used
    with pytest.raises(ad.BackendError, match="generator: expected None inside of activation checkpointing"):
        gradients(reentrant, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_default_generator_is_restored(reentrant: bool) -> None:
    assert all(torch.equal(one, other) for one, other in zip(gradients(None), gradients(reentrant), strict=True))


@pytest.mark.parametrize("text", ["hard(p=0.5,k=3)", "blur(sigma_max=1.0)", "noise(sigma=0.5)", "drophead(p=0.5)"])
@pytest.mark.parametrize("saved", ["all", "products", "seeds", "none"])
def test_selective_checkpointing_may_keep_any_result(text: str, saved: str) -> None:
    """A result that is kept must not change later: torch would refuse to use it."""
    parts = {"all": "", "products": "mm", "seeds": "draw_seed", "none": "nothing has this name"}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if parts[saved] in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    found = []
    for selective in (False, True):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
        run = functools.partial(attention, drop=text)
        output = checkpoint(run, q, k, v, use_reentrant=False, context_fn=contexts) if selective else run(q, k, v)
        found.append([output, *torch.autograd.grad(output.square().sum(), (q, k, v))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
