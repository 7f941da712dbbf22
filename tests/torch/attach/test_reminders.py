"""What people forget in training is noticed after some calls; what is done is not complained about."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach.attachment import Attachment
from attentiondrop.torch.attach.reminders import PATIENCE

WARMUP = "hard(p=warmup(to=0.1,share=0.2),k=5)"
LINEAR = "blur(sigma_max=linear(start=0.25,end=1.0))"
WEIGHT = "dropkey(p=0.3)+consistency(weight=linear(start=0.0,end=1.0))"
#: Rates that the progress does not change.
FIXED = (
    "hard(p=0.1)",
    "hard(p=constant(0.1))",
    "dropkey(p=depth(0.3,0.0))",
    "dropkey(p=heads([0.1,0.2]))",
    "blur(sigma_max=entropy(target=0.6,high=2.0))",
    "headmask(choice=important)",
)


class Sdpa(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


def train(model: nn.Module, calls: int = PATIENCE["progress"] + 1, shape: tuple[int, ...] = (2, 5, 16)) -> None:
    x = torch.randn(shape, requires_grad=True)
    for _ in range(calls):
        model(x)


@pytest.mark.parametrize("build, shape", [(encoder, (2, 5, 16)), (Sdpa, (2, 2, 5, 16))])
@pytest.mark.parametrize(
    "spec, rate, value",
    [(WARMUP, f"p of {WARMUP}", "p stays at 0.0."), (LINEAR, f"sigma_max of {LINEAR}", "sigma_max stays at 0.25.")],
)
def test_a_schedule_without_progress_is_noticed(
    build: Callable[[], nn.Module], shape: tuple[int, ...], spec: str, rate: str, value: str
) -> None:
    model = nn.Sequential(build())
    attach(model, spec)
    train(model, PATIENCE["progress"], shape)
    with pytest.warns(ad.AttentionDropWarning) as found:
        train(model, 1, shape)
    assert len(found) == 1
    message = str(found[0].message)
    assert f"the rate {rate} is a schedule" in message and value in message
    for remedy in ("attachment.set_progress(step / steps)", "ScheduleCallback", "AttentionDropCallback"):
        assert remedy in message
    assert found[0].filename == __file__
    train(model, 30, shape)


@pytest.mark.parametrize("build, shape", [(encoder, (2, 5, 16)), (Sdpa, (2, 2, 5, 16))])
def test_so_is_a_scheduled_weight(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = nn.Sequential(build())
    attach(model, WEIGHT)
    with pytest.warns(ad.AttentionDropWarning) as found:
        train(model, shape=shape)
    assert ["which acts only in a loss" in str(one.message) for one in found] == [True, False]
    assert "the rate weight of consistency(weight=linear(start=0.0,end=1.0)) is a schedule" in str(found[1].message)


def by_progress(attachment: Attachment) -> None:
    attachment.set_progress(0.0)


def by_state(attachment: Attachment) -> None:
    attachment.load_state_dict(attachment.state_dict())


def by_both(attachment: Attachment) -> None:
    by_progress(attachment)
    attachment.update(LINEAR)


@pytest.mark.parametrize("tell", [by_progress, by_state, by_both])
def test_a_progress_is_heard(tell: Callable[[Attachment], None]) -> None:
    model = encoder()
    attachment = attach(model, WARMUP)
    tell(attachment)
    train(model)


@pytest.mark.parametrize("spec", FIXED)
def test_rates_that_need_no_progress(spec: str) -> None:
    model = encoder()
    attach(model, spec)
    train(model, 30)


def test_a_new_spec_is_watched() -> None:
    model = encoder()
    attachment = attach(model, FIXED[1])
    train(model)
    attachment.update(LINEAR)
    with pytest.warns(ad.AttentionDropWarning, match=r"sigma_max stays at 0\.25"):
        train(model)


def test_only_the_layer_that_changes_is_named() -> None:
    model = nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)
    attach(model, "dropkey(p=layers([0.3,linear(start=0.1,end=0.2)]))")
    with pytest.warns(ad.AttentionDropWarning, match=r"p stays at 0\.1.* calls of layers\.1\.self_attn") as found:
        train(model)
    assert len(found) == 1


def test_evaluation_does_not_count() -> None:
    model = encoder()
    attach(model, WARMUP)
    with torch.no_grad():
        train(model, 30)
    model.eval()
    train(model, 30)


def test_nor_do_models_that_are_measured() -> None:
    model = encoder()
    attachment = attach(model, WARMUP)
    for site in attachment.sites:
        site.freeze()
    train(model, 30)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_count_on_their_own(twin: Callable[[Any], Any]) -> None:
    model = encoder()
    attachment = attach(model, WARMUP)
    other = twin(model)
    attachment.set_progress(0.5)
    train(model)
    with pytest.warns(ad.AttentionDropWarning, match=r"p stays at 0\.0"):
        train(other)


def test_compiled_code_does_not_depend_on_it() -> None:
    """Neither the count nor a progress compiles again."""
    torch._dynamo.reset()
    model, counter = encoder(), CompileCounter()
    attachment = attach(model, f"{WARMUP}+consistency(weight=linear(start=0.0,end=1.0))")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(2, 5, 16)
    for _ in range(12):
        compiled(x)
    for site in attachment.sites:
        site.done("consistency")
    attachment.set_progress(0.5)
    compiled(x)
    assert counter.frame_count == 1


def learning(spec: str = "blur(sigma_max=learnable(0.5,high=2.0))") -> tuple[nn.Module, Attachment]:
    model = encoder()
    return model, attach(model, spec)


def steps(model: nn.Module, optimiser: torch.optim.Optimizer, every: int = 1) -> None:
    x = torch.randn(2, 5, 16)
    for step in range(PATIENCE["optimiser"] + 1):
        model(x).square().mean().backward()
        if step % every == every - 1:
            optimiser.step()
            optimiser.zero_grad()


def test_a_learned_rate_in_no_optimiser_is_noticed() -> None:
    model, _ = learning()
    with pytest.warns(ad.AttentionDropWarning, match=r"the rate sigma_max of self_attn .* attachment\.parameters\(\)"):
        steps(model, torch.optim.SGD(model.parameters(), 0.01))


def test_a_spec_with_a_schedule_and_a_learned_rate_needs_both() -> None:
    model, _ = learning("hard(p=linear(start=0.0,end=0.1),k=2)+blur(sigma_max=learnable(0.5,high=2.0))")
    with pytest.warns(ad.AttentionDropWarning) as found:
        steps(model, torch.optim.SGD(model.parameters(), 0.01))
    assert ["is a schedule" in str(one.message) for one in found] == [True, False]
    assert "give attachment.parameters() to the optimiser" in str(found[1].message)


@pytest.mark.parametrize("every", [1, 8])
def test_a_learned_rate_in_an_optimiser_is_not(every: int) -> None:
    model, attachment = learning()
    steps(model, torch.optim.SGD([*model.parameters(), *attachment.parameters()], 0.01), every)


def test_nor_one_that_gets_no_gradient() -> None:
    model, attachment = learning()
    for rate in attachment.parameters():
        rate.requires_grad_(False)
    steps(model, torch.optim.SGD(model.parameters(), 0.01))
