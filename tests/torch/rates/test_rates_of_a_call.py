"""A backward uses the rates of its forward, although they have moved since: adaptive rates do so after every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peaked import Peaked
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.schedules import Linear
from attentiondrop.torch import attach, dispatch, functional
from attentiondrop.torch.call.decisions import Decisions
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import active_leaves
from attentiondrop.torch.draws import Stream
from attentiondrop.torch.eager.regularisers import gaussian_kernel
from attentiondrop.torch.fused import short_rows
from attentiondrop.torch.fused.row_blocks import blockwise_backward, blockwise_forward
from attentiondrop.torch.kernels.short.plans import read
from attentiondrop.torch.rates.scheduled import driven_at


def adaptive(high: float) -> ad.EntropyTarget:
    """Moves by more than a hundredth in each call."""
    return ad.EntropyTarget(0.9, high=high, start=0.2, speed=0.1)


def scheduled(high: float) -> Linear:
    return Linear(0.2, high)


SPECS = {
    "hard": lambda rule: ad.HardMasking(p=rule(0.5), k=3),
    "hidden": lambda rule: ad.HardMasking(p=rule(0.5), k=3, fill="-inf"),
    "key": lambda rule: ad.DropKey(rule(0.5)),
    "dropout": lambda rule: ad.AttentionDropout(rule(0.5)),
    "blur": lambda rule: ad.BlurSmoothing(rule(2.0)),
    "one of two": lambda rule: ad.OneOf([ad.DropKey(rule(0.5)), ad.BlurSmoothing(rule(2.0))]),
}
OTHERS = {
    "noise": lambda rule: ad.GaussianNoise(rule(0.5)),
    "temperature": lambda rule: ad.TemperatureNoise(rule(0.5)),
    "heads": lambda rule: ad.DropHead(rule(0.5)),
    "weights": lambda rule: ad.DropAttention(rule(0.5)),
}


@pytest.fixture
def short_rows_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path "short rows" with row blocks in place of its kernels, which need CUDA. Returns the paths taken."""
    taken: list[str] = []
    fused = functional.fused_attention

    def noted(route: dispatch.Route) -> Tensor:
        taken.append(route.path)
        return fused(route)

    monkeypatch.setattr(functional, "fused_attention", noted)
    monkeypatch.setattr(dispatch, "why_not_short", lambda call, plan: None)
    monkeypatch.setattr(short_rows, "forward", _forward)
    monkeypatch.setattr(short_rows, "backward", _backward)
    return taken


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return blockwise_forward(q, k, v, _decisions(k.shape[2], *rest))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, notes: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return blockwise_backward(grad, q, k, v, _decisions(k.shape[2], *rest))


def _decisions(
    columns: int,
    seed: Tensor | None,
    drop_gate: Tensor | None,
    dropout_gate: Tensor | None,
    blur_gate: Tensor | None,
    visible: Tensor | None,
    text: str,
) -> Decisions:
    """What the kernels would do, in the words of row blocks. They read the gates when they run, as the kernels do."""
    plan = read(text)
    slot, stream, rate, gate = (1 if plan.drop else None), plan.stream, plan.rate, drop_gate
    if plan.dropout:
        slot, stream, rate, gate = 2, plan.dropout_stream, plan.dropout_rate, dropout_gate
    rate = rate if gate is None else gate * rate
    gates = torch.stack([torch.as_tensor(rate if index == slot else 1.0, dtype=torch.float64) for index in range(4)])
    kernel = None
    if plan.radius and blur_gate is not None:
        assert seed is not None and plan.sampling == "batch"
        uniform = Stream(seed, plan.blur_stream).uniform_vector(1).double()
        sigma = (plan.sigma_min + (plan.sigma_max - plan.sigma_min) * uniform) * blur_gate
        kernel = gaussian_kernel(sigma.view(1, 1), 2 * plan.radius + 1)
    return Decisions(
        None, None, seed, gates, [1.0] * 4, [stream if index == slot else -1 for index in range(4)],
        "" if slot != 1 else "-inf" if plan.hide else "zero", plan.top or columns, plan.is_causal, plan.scale,
        kernel=kernel, renormalize=plan.renormalize,
    )  # fmt: skip


def gradients(spec: ad.Spec, backend: str) -> list[Any]:
    """Of steps with two batches each. Rates move after the first batch, and before the backward."""
    torch.manual_seed(0)
    model = Peaked().double()
    attachment = attach(model, spec, backend=backend)
    found: list[Any] = []
    for step in range(2):
        losses = []
        for part in range(2):
            losses.append(model(torch.randn(2, 40, 16, dtype=torch.float64)).square().sum())
            attachment.set_progress((2 * step + part + 1) / 4)
        model.zero_grad()
        torch.stack(losses).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    return [*found, attachment.rates()]


@pytest.mark.parametrize("rule", [adaptive, scheduled])
@pytest.mark.parametrize("name", SPECS)
def test_rows_that_are_short(name: str, rule: Any, short_rows_on_a_cpu: list[str]) -> None:
    spec = SPECS[name](rule)
    found = gradients(spec, "fused")
    assert short_rows_on_a_cpu == ["short rows"] * 4
    check_equal(found, gradients(spec, "eager"))


@pytest.mark.parametrize("rule", [adaptive, scheduled])
@pytest.mark.parametrize("name", ["hard", "blur", "one of two", "noise", "heads"])
def test_other_fused_paths(name: str, rule: Any) -> None:
    spec = (SPECS | OTHERS)[name](rule)
    check_equal(gradients(spec, "fused"), gradients(spec, "eager"))


def check_equal(found: list[Any], want: list[Any]) -> None:
    torch.testing.assert_close(found[:-1], want[:-1], rtol=1e-9, atol=1e-9)
    for site, rates in want[-1].items():
        assert found[-1][site] == pytest.approx(rates) and list(rates.values()) != [0.2] * len(rates)  # they moved


@pytest.mark.parametrize("name", SPECS | OTHERS)
def test_no_call_holds_a_rate_that_changes(name: str) -> None:
    """All operators get their rates from `active_leaves`, on every device."""
    driven = driven_at((SPECS | OTHERS)[name](scheduled), 0.0, 0, 1, nn.Linear(1, 1), None)
    assert driven is not None
    live = {value.data_ptr() for fields in driven.values.values() for value in fields.values()}
    leaves = active_leaves(driven, torch.tensor(1), torch.float32)
    mine = {value.data_ptr() for leaf in leaves for value in leaf.values.values()}
    assert live and mine and not live & mine


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("length", [50, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SPECS)
def test_kernels(name: str, dtype: torch.dtype, length: int) -> None:
    spec, layer = SPECS[name](scheduled), nn.Linear(1, 1, device="cuda")
    q, k, v, grad = (torch.randn(2, 4, length, 64, device="cuda", dtype=dtype) for _ in range(4))

    def found(moves: bool) -> list[Tensor]:
        driven = driven_at(spec, 0.0, 0, 1, layer, None)
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(3)
        output = functional.perturbed_attention(*inputs, driven, Options(), backend="fused").output
        if moves:
            driven_at(spec, 1.0, 0, 1, layer, driven)
        return list(torch.autograd.grad(output, inputs, grad))

    # A decision with another rate would change whole keys. What may differ is the order of sums.
    torch.testing.assert_close(found(True), found(False), rtol=1e-2, atol=1e-2)
