"""`EntropyTarget` and `watch` under activation checkpointing: the gradients, rates and counts of a run without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peaked import Peaked
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.rates import recent_calls as recent

#: Moves by more than a hundredth in each call.
RULE = ad.EntropyTarget(0.9, high=0.5, start=0.2, speed=0.1)
SPECS = {
    "hard": ad.HardMasking(p=RULE, k=3),
    "by head": ad.HardMasking(p=ad.EntropyTarget(0.9, high=0.5, start=0.2, speed=0.1, per="head"), k=3),
    "blur": ad.BlurSmoothing(ad.EntropyTarget(0.9, high=2.0, start=0.5, speed=0.1)),
    "blur between two rates": ad.BlurSmoothing(
        ad.EntropyTarget(0.9, low=0.3, high=2.0, start=0.5, speed=0.1), sigma_min=ad.schedules.Constant(0.3)
    ),
    "two": ad.Compose([ad.GaussianNoise(RULE), ad.DropKey(RULE)]),
}
Call = Callable[..., Tensor]


def one_step(model: nn.Module, call: Call) -> None:
    call(torch.randn(2, 32, 16, dtype=torch.float64)).square().sum().backward()


def two_batches_before_the_backward(model: nn.Module, call: Call) -> None:
    losses = [call(torch.randn(2, 32, 16, dtype=torch.float64)).square().sum() for _ in range(2)]
    torch.stack(losses).sum().backward()


def shared_weights(model: nn.Module, call: Call) -> None:
    call(call(torch.randn(2, 32, 16, dtype=torch.float64))).square().sum().backward()


def evaluated_in_between(model: nn.Module, call: Call) -> None:
    loss = call(torch.randn(2, 32, 16, dtype=torch.float64)).square().sum()
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 32, 16, dtype=torch.float64))
    model.train()
    loss.backward()


def watched_in_between(model: nn.Module, call: Call) -> None:
    loss = call(torch.randn(2, 32, 16, dtype=torch.float64)).square().sum()
    model.attachment.watch()
    loss.backward()


def train(spec: ad.Spec, step: Any, reentrant: bool | None) -> tuple[list[Tensor], Any, int]:
    torch.manual_seed(0)
    model = Peaked().double()
    attachment = attach(model, spec)
    model.__dict__["attachment"] = attachment
    attachment.watch()

    def call(x: Tensor) -> Tensor:
        # A reentrant checkpoint needs an input with a gradient.
        x = x.requires_grad_() if x.is_leaf else x
        return model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)

    for _ in range(3):
        step(model, call)
    stats = attachment.stats() if attachment.sites[0].monitor.sums else {}
    calls = stats["attention"].calls if stats else 0
    return [p.grad for p in model.parameters()], attachment.rates(), calls


@pytest.mark.parametrize(
    "step", [one_step, two_batches_before_the_backward, shared_weights, evaluated_in_between, watched_in_between]
)
@pytest.mark.parametrize("name", SPECS)
def test_nothing_changes(name: str, step: Any) -> None:
    want, rates, calls = train(SPECS[name], step, None)
    assert rates != attach(Peaked(), SPECS[name]).rates()  # it moved
    for reentrant in (False, True):
        found, other_rates, other_calls = train(SPECS[name], step, reentrant)
        # The gradients of two calls are added up in another order.
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11)
        assert (other_rates, other_calls) == (rates, calls)


def test_a_fixed_rate_counts_once() -> None:
    counts = [train(ad.HardMasking(p=0.2, k=3), one_step, reentrant)[2] for reentrant in (None, False, True)]
    assert counts == [3, 3, 3]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_was_forgotten_is_refused(reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "LENGTH", 1)
    train(SPECS["hard"], one_step, reentrant)
    with pytest.raises(ad.AttachError, match="EntropyTarget: a call that is computed again"):
        train(SPECS["hard"], two_batches_before_the_backward, reentrant)


def test_equal_seeds_with_other_rates_are_refused() -> None:
    def same_seed_twice(model: nn.Module, call: Call) -> None:
        losses = []
        for _ in range(2):
            x = torch.randn(2, 32, 16, dtype=torch.float64)
            torch.manual_seed(3)
            losses.append(call(x).square().sum())
        torch.stack(losses).sum().backward()

    train(SPECS["hard"], same_seed_twice, None)
    with pytest.raises(ad.AttachError, match="several calls with other rates drew its seed"):
        train(SPECS["hard"], same_seed_twice, False)


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "reentrant"), [(False, False), (False, True), (True, False)])
def test_compiled(inside: bool, reentrant: bool) -> None:
    """A checkpoint around compiled code, and compiled code with a checkpoint in it.

    A reentrant one computes everything again, and not only until it has what the backward needs.
    """
    torch._dynamo.reset()
    want, rates, calls = train(SPECS["hard"], one_step, None)

    def compiled_step(model: nn.Module, call: Call) -> None:
        if "compiled" not in model.__dict__:
            inner = torch.compile(model, backend="aot_eager_decomp_partition")
            outer = torch.compile(
                lambda x: checkpoint(model, x, use_reentrant=False), backend="aot_eager_decomp_partition"
            )
            model.__dict__["compiled"] = outer if inside else lambda x: checkpoint(inner, x, use_reentrant=reentrant)
        model.__dict__["compiled"](
            torch.randn(2, 32, 16, dtype=torch.float64).requires_grad_()
        ).square().sum().backward()

    found, other_rates, other_calls = train(SPECS["hard"], compiled_step, None)
    assert other_calls == calls
    assert other_rates["attention"]["hard.p"] == pytest.approx(rates["attention"]["hard.p"])
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


def test_the_last_calls_are_remembered_after_many_more() -> None:
    kept = recent.Recent()
    for seed in range(recent.LENGTH + 3):
        kept.add(torch.tensor(seed), [torch.tensor(float(seed))])
    for seed in (3, recent.LENGTH - 1, recent.LENGTH, recent.LENGTH + 2):
        assert kept.surely_rates_of(torch.tensor(seed)) == [seed]
    with pytest.raises(ad.AttachError, match=f"not among the last {recent.LENGTH}"):
        kept.surely_rates_of(torch.tensor(2))
