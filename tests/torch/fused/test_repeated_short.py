"""Which calls of the kernels for short rows are repetitions of earlier ones. (Simple functions stand for the kernels.)"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach, attention, dispatch, functional
from attentiondrop.torch.attach.reminders import Reminders
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.call import sharded
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import Driven
from attentiondrop.torch.fused import repeated_short, short_rows
from attentiondrop.torch.kernels.short.plans import read
from attentiondrop.torch.rates.monitoring import Monitor

HARD = ad.HardMasking(p=0.1, k=5)
BLUR = ad.BlurSmoothing(0.5)


def factor(seed: Tensor) -> float:
    return 1.0 + int(seed) % 1000


def forward(q: Tensor, k: Tensor, v: Tensor, seed: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return (q + 2 * k + 3 * v) * factor(seed) + read(rest[4]).rate, torch.zeros(1, dtype=torch.int32)


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, notes: Tensor, seed: Tensor, *_: Any):
    return grad * factor(seed), 2 * grad * factor(seed), 4 * grad * factor(seed)


@pytest.fixture(autouse=True)
def looked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were looked for. A repetition looks for none."""
    found: list[str] = []

    def choose(*args: Any) -> dispatch.Route:
        found.append("looked")
        return dispatch.choose(*args)

    monkeypatch.setattr(dispatch, "why_not_short", lambda call, plan: None)
    monkeypatch.setattr(dispatch, "_why_not_inside", lambda call, plan: None)
    monkeypatch.setattr(functional, "choose", choose)
    monkeypatch.setattr(short_rows, "forward", forward)
    monkeypatch.setattr(short_rows, "backward", backward)
    monkeypatch.setattr(repeated_short, "_known", {})
    return found


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(*(shape or (1, 2, 8, 4)), dtype=dtype, requires_grad=True) for _ in range(3)]


def fused(q: Tensor, k: Tensor, v: Tensor, spec: ad.Spec = HARD, **options: Any) -> Tensor:
    return attention(q, k, v, spec, backend="fused", **options)


@pytest.mark.parametrize("spec", [HARD, BLUR], ids=str)
def test_a_repetition_gives_what_the_first_call_gives(spec: ad.Spec, looked_for: list[str]) -> None:
    inputs = tensors()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        for _ in range(2):
            output = fused(*inputs, spec)
            found.append([output, *torch.autograd.grad(output, inputs, output.detach())])
    assert looked_for == ["looked"]
    for one, other in zip(found[0] + found[1], found[2] + found[3], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[0][0], found[1][0]), "every call has draws of its own"
    assert torch.equal(found[0][2], 2 * found[0][1]) and torch.equal(found[0][3], 4 * found[0][1])


def test_an_equal_spec_is_enough(looked_for: list[str]) -> None:
    for _ in range(3):
        fused(*tensors(), ad.HardMasking(p=0.1, k=5))
    assert looked_for == ["looked"]


def test_what_belongs_to_the_look_of_a_call(looked_for: list[str]) -> None:
    calls = [
        ((), {}), ((2, 2, 8, 4), {}), ((), {"scale": 0.3}), ((), {"is_causal": True}), ((), {"dropout_p": 0.1}),
        ((), {"spec": ad.HardMasking(p=0.2, k=5)}), ((), {"enable_gqa": True}),
    ]  # fmt: skip
    for shape, options in calls:
        fused(*tensors(*shape), **options)
    fused(*tensors(dtype=torch.bfloat16))
    assert len(looked_for) == len(repeated_short._known) == len(calls) + 1
    for shape, options in calls:
        fused(*tensors(*shape), **options)
    assert len(looked_for) == len(calls) + 1


def test_groups_belong_to_the_look_of_a_call(looked_for: list[str]) -> None:
    inputs = tensors(6, 2, 8, 4)
    for groups in (1, 3, 1, 3):
        functional.perturbed_attention(*inputs, BLUR, Options(), backend="fused", groups=groups)
    assert [read(plan).groups for plan in repeated_short._known.values()] == [1, 3] and len(looked_for) == 2


def test_masks_are_no_part_of_it(looked_for: list[str]) -> None:
    fused(*tensors())
    for options in ({"attn_mask": torch.ones(1, 1, 1, 8, dtype=torch.bool)}, {"bias": torch.zeros(1, 1, 8, 8)}):
        fused(*tensors(), **options)
    assert len(looked_for) == 3 and len(repeated_short._known) == 1


def test_a_choice_or_a_schedule_is_looked_for_each_time(looked_for: list[str]) -> None:
    for _ in range(2):
        fused(*tensors(), ad.OneOf([BLUR, HARD]))
    model = Model()
    attachment = attach(model, ad.HardMasking(p=ad.schedules.Linear(0.1, 0.2)), backend="fused")
    for _ in range(2):
        attachment.set_progress(0.5)
        model(*tensors())
    assert len(looked_for) == 4 and not repeated_short._known


def test_seeds_and_generators_are_used(looked_for: list[str]) -> None:
    inputs = tensors()
    found = []
    for _ in range(2):
        found.append(fused(*inputs, generator=torch.Generator().manual_seed(3)))
    torch.manual_seed(0)
    found.append(fused(*inputs))
    assert looked_for == ["looked"] and torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


class Other(Tensor):
    pass


def test_whoever_watches_sees_the_operations(looked_for: list[str]) -> None:
    inputs = tensors()
    fused(*inputs)
    with forward_ad.dual_level():
        fused(*inputs)
    assert len(looked_for) == 2
    fused(*(x.as_subclass(Other) for x in inputs))
    assert len(looked_for) == 3
    fused(*inputs)
    assert len(looked_for) == 3


def test_tensors_that_a_transform_has_left(looked_for: list[str]) -> None:
    """They are wrapped, although the transform is over."""
    x = torch.randn(1, 2, 8, 4)
    left = []

    def keep(x: Tensor) -> Tensor:
        left.append(x * 1.0)
        return x.sum()

    torch.func.grad(keep)(x)
    fused(x, x, x)
    torch.manual_seed(0)
    want = fused(x, x, x)
    assert len(looked_for) == 1
    torch.manual_seed(0)
    assert torch.equal(fused(left[0], x, x), want) and len(looked_for) == 2


def test_autocast_in_another_dtype(looked_for: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is for CUDA, and so is the question."""
    inputs = tensors()
    fused(*inputs)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
    fused(*inputs)
    assert len(looked_for) == 2
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.float32)
    fused(*inputs)
    assert len(looked_for) == 2


def test_context_parallel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors()
    fused(*inputs)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *_: None)
    monkeypatch.setattr(sharded, "_CONTEXT_PARALLEL", __name__)
    with pytest.raises(ad.BackendError, match="context_parallel"):
        fused(*inputs)


def test_not_more_is_kept_than_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_short, "_MOST", 3)
    for length in range(1, 9):
        fused(*tensors(1, 1, length, 4))
        assert len(repeated_short._known) <= 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.inner(q, k, v)


class Inner(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)


def test_sites_take_the_shortest_way(looked_for: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    attachment = attach(model, HARD, backend="fused")
    inputs = tensors()
    model(*inputs)
    general = []
    monkeypatch.setattr(functional, "_repeated", lambda *_: general.append("asked") or (None, None))
    torch.manual_seed(0)
    found = model(*inputs)
    assert looked_for == ["looked"] and not general
    torch.manual_seed(0)
    assert torch.equal(found, fused(*inputs))
    attachment.watch()
    model(*inputs)
    assert len(looked_for) == 3, "a call that is measured is no repetition"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("driven", Driven(HARD, {})),
        ("rank", 1),
        ("stacks", (SimpleNamespace(belongs=lambda place, device: False),)),
        ("monitor", Monitor()),
        ("reminders", Reminders(["consistency"])),
    ],
)
def test_sites_that_do_more_take_the_usual_way(field: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Model(), tensors()
    attach(model, HARD, backend="fused")
    model(*inputs)

    def refuse(*_: Any) -> None:
        raise AssertionError("it took the shortest way")

    monkeypatch.setattr(sys.modules["attentiondrop.torch.attach.sdpa"], "repeat", refuse)
    with pytest.raises(AssertionError, match="shortest"):
        model(*inputs)
    site = site_of(model.inner)
    assert site is not None
    setattr(site, field, value)
    assert model(*inputs).shape == inputs[0].shape


def test_checkpointing_repeats_the_draws(looked_for: list[str]) -> None:
    model, inputs = Model(), tensors()
    attach(model, BLUR, backend="fused")
    model(*inputs)
    found = []
    for call in (model, lambda *x: checkpoint(model, *x, use_reentrant=False)):
        torch.manual_seed(5)
        output = call(*inputs)
        found.append(torch.autograd.grad(output, inputs, torch.ones_like(output)))
    assert looked_for == ["looked"]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_hooks_see_what_is_saved(looked_for: list[str]) -> None:
    inputs, seen = tensors(), []
    fused(*inputs)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x.clone(), lambda x: x):
        output = fused(*inputs)
    torch.autograd.grad(output, inputs, output.detach())
    assert looked_for == ["looked"] and len(seen) == 6, "q, k, v, output, notes and seed"


def test_the_operator_answers_for_second_derivatives(looked_for: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses them (see `test_short_kernels`)."""
    asked = []

    def operator(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        asked.append(ctx.plan)
        return backward(grad, *ctx.saved_tensors)

    monkeypatch.setattr(short_rows, "_watched_backward", operator)
    inputs = tensors()
    fused(*inputs)
    for create_graph in (False, True):
        torch.autograd.grad(fused(*inputs).sum(), inputs, create_graph=create_graph)
    assert looked_for == ["looked"] and [read(plan).drop for plan in asked] == ["largest"]
