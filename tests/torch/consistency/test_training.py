"""What training does around a loss: activation checkpointing, accumulation, autocast, compilation, several losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from consistency_models import BATCH, CASES, SPEC, Classifier, build, floats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.errors import forget_warnings
from attentiondrop.torch import attach, consistency_loss, views
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.consistency.divergence import divergence
from attentiondrop.torch.consistency.shared_prefix import KEY
from tests.torch.compiler import needs_compiler

CONSISTENCY = ad.Consistency(weight=0.5)
Gradients = dict[str, Tensor]


def task(output: Any) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return nn.functional.cross_entropy(logits.flatten(0, -2), torch.arange(logits[..., 0].numel()) % logits.shape[-1])


def gradients(model: nn.Module, loss: Callable[[], Tensor], seed: int = 1) -> tuple[Tensor, Gradients]:
    model.zero_grad()
    torch.manual_seed(seed)
    value = loss()
    value.backward()
    return value.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(one: tuple[Tensor, Gradients], other: tuple[Tensor, Gradients], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=tolerance, atol=tolerance)
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        torch.testing.assert_close(one[1][name], other[1][name], rtol=tolerance, atol=tolerance)


def leaves_no_trace(model: nn.Module) -> None:
    for module in model.modules():
        site = site_of(module)
        assert KEY not in module._forward_pre_hooks and KEY not in module._forward_pre_hooks_with_kwargs
        assert site is None or (site.views, site.stacks) == (1, ())


class Checkpointed(nn.Module):
    """Blocks one by one in checkpoints, as people write it."""

    def __init__(self, model: Classifier, reentrant: bool) -> None:
        super().__init__()
        self.model, self.reentrant = model, reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.model.encoder.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.model.head(x)


def checkpoint_hugging(model: nn.Module, reentrant: bool) -> nn.Module:
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


def checkpoint_timm(model: nn.Module, reentrant: bool) -> nn.Module:
    model.set_grad_checkpointing()
    return model


CHECKPOINTED = {
    "encoder": (Checkpointed, lambda: floats(BATCH, 6, 16).requires_grad_(), "*layers.[23].*"),
    "vit": (checkpoint_timm, CASES["vit"].inputs, CASES["vit"].late),
    "bert": (checkpoint_hugging, CASES["bert"].inputs, CASES["bert"].late),
    "gpt2": (checkpoint_hugging, CASES["gpt2"].inputs, CASES["gpt2"].late),
    "t5 both": (checkpoint_hugging, CASES["t5 both"].inputs, CASES["t5 both"].late),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("mode", ["batch", "shared"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_activation_checkpointing(name: str, mode: str, reentrant: bool) -> None:
    wrap, inputs, late = CHECKPOINTED[name]
    model = build(name)
    again = wrap(copy.deepcopy(model), reentrant)
    given = inputs()
    if reentrant and isinstance(given, dict):
        again.enable_input_require_grads()
    for each in (model, again):
        attach(each, {late: SPEC})

    def loss(each: nn.Module) -> Tensor:
        return consistency_loss(each, inputs(), task, CONSISTENCY, mode).loss

    expected = gradients(model, lambda: loss(model))
    found = gradients(again, lambda: loss(again))
    same((found[0], {n.removeprefix("model."): g for n, g in found[1].items()}), expected)
    leaves_no_trace(again)


@pytest.mark.parametrize("mode", ["batch", "shared"])
@pytest.mark.parametrize("plain_first", [False, True])
def test_a_plain_pass_in_the_same_checkpointed_backward(mode: str, plain_first: bool) -> None:
    """Recomputation must tell passes apart, even where the plain batch is as large as the stack."""
    model = build("encoder")
    again = Checkpointed(copy.deepcopy(model), False)
    for each in (model, again):
        attach(each, {"*layers.[23].*": SPEC})
    x, other = floats(BATCH, 6, 16), floats(2 * BATCH, 6, 16) + 1

    def loss(each: nn.Module) -> Tensor:
        parts = [
            lambda: consistency_loss(each, x, task, CONSISTENCY, mode).loss,
            lambda: task(each(other)),
            lambda: consistency_loss(each, x[:2], task, CONSISTENCY, mode).loss,
            lambda: task(each(x)),
        ]
        return sum(part() for part in (reversed(parts) if plain_first else parts))

    expected = gradients(model, lambda: loss(model))
    found = gradients(again, lambda: loss(again))
    same((found[0], {n.removeprefix("model."): g for n, g in found[1].items()}), expected)
    leaves_no_trace(again)


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_accumulated_gradients_are_those_of_the_sum(mode: str) -> None:
    model = build("encoder")
    attach(model, {"encoder.layers.3.*": SPEC})
    x = floats(4, 6, 16)

    def halves() -> list[Tensor]:
        return [consistency_loss(model, part, task, CONSISTENCY, mode).loss / 2 for part in x.chunk(2)]

    expected = gradients(model, lambda: sum(halves()))
    model.zero_grad()
    torch.manual_seed(1)
    for part in x.chunk(2):
        (consistency_loss(model, part, task, CONSISTENCY, mode).loss / 2).backward()
    same((expected[0], {n: p.grad for n, p in model.named_parameters() if p.grad is not None}), expected)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_compiler)])
def test_the_sum_over_positions_is_divided_by_the_given_number(compiled: bool) -> None:
    """As the task loss of an accumulated batch is. Padding does not count."""
    model, x, mask = build("encoder"), floats(4, 6, 16), torch.ones(4, 6, dtype=torch.bool)
    mask[1, 2:] = False
    attach(model, {"encoder.layers.3.*": SPEC})
    found = []
    for items in (None, 100, torch.tensor(100)):
        torch.manual_seed(1)
        result = consistency_loss(model, x, task, CONSISTENCY, mask=mask, items=items, compiled=compiled)
        found.append(result.divergence.detach())
        torch.testing.assert_close(result.loss, result.task + 0.5 * result.divergence)
    torch.testing.assert_close(found[1], found[0] * mask.sum() / 100)
    torch.testing.assert_close(found[2], found[1])


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_autocast(mode: str) -> None:
    model = build("bert tokens").float()
    attach(model, {"*.layer.[23].*": "hard(p=0.5,k=3)"})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = consistency_loss(model, CASES["bert tokens"].inputs(), task, CONSISTENCY, mode)
    assert result.outputs[0].logits.dtype == torch.bfloat16 and result.divergence.dtype == torch.float32
    result.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.no_cover
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_forgotten_loss_is_noticed(forgotten: bool, recwarn: pytest.WarningsRecorder) -> None:
    """The consistency part of a spec does nothing by itself."""
    forget_warnings()
    model, x = build("encoder"), floats(BATCH, 6, 16)
    attach(model, "dropkey(p=0.3)+consistency(weight=0.5)")
    for _ in range(3):
        model(x)
    if not forgotten:
        consistency_loss(model, x, task)
    with torch.no_grad():
        model(x)
    assert not recwarn.list
    model(x)
    model(x)
    found = [str(warning.message) for warning in recwarn.list]
    assert len(found) == forgotten
    assert not found or "has a consistency part, which acts only in a loss: compute it with" in found[0]


@pytest.mark.parametrize("asked", [False, True])
def test_the_divergence_is_compiled_if_asked(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compiled = lambda: made.append("compiled") or divergence  # noqa: E731
    monkeypatch.setattr("attentiondrop.torch.consistency.loss.compiled_divergence", compiled)
    model = build("encoder")
    attach(model, "dropkey(p=0.3)")
    consistency_loss(model, floats(BATCH, 6, 16), task, CONSISTENCY, compiled=asked)
    assert made == ["compiled"] * asked


def test_compiled() -> None:
    """A compiled model gives what the eager one gives, in both modes, and is compiled once for each."""
    torch._dynamo.reset()
    model, x = build("encoder"), floats(BATCH, 6, 16)
    attach(model, {CASES["encoder"].late: "blur(sigma_max=2.0)+dropkey(p=0.3)"})
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    def loss(each: nn.Module, mode: str) -> Callable[[], Tensor]:
        return lambda: consistency_loss(each, x, task, CONSISTENCY, mode).loss

    for mode in ("batch", "shared", "batch"):
        for seed in (1, 2):
            expected = gradients(model, loss(model, mode), seed)
            found = gradients(model, loss(compiled, mode), seed)
            same(found, expected)
    torch._dynamo.config.error_on_recompile, before = True, torch._dynamo.config.error_on_recompile
    try:
        same(gradients(model, loss(compiled, "shared"), 3), gradients(model, loss(model, "shared"), 3))
    finally:
        torch._dynamo.config.error_on_recompile = before
    leaves_no_trace(model)


def test_an_error_leaves_no_trace() -> None:
    model = build("encoder")
    attach(model, {"encoder.layers.3.*": SPEC})
    model.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        views(model, floats(2, 6, 16), mode="shared")
    leaves_no_trace(model)


def test_copies_and_other_sites() -> None:
    """The prefix follows the attachment, and a copy has its own."""
    model = build("encoder")
    x = floats(BATCH, 6, 16)
    attachment = attach(model, {"encoder.layers.3.*": SPEC})
    views(model, x, mode="shared")
    copied = copy.deepcopy(model)
    attachment.remove()
    attach(model, {"encoder.layers.0.*": SPEC})
    for each in (model, copied):
        torch.manual_seed(2)
        one = views(each, x, mode="shared")
        torch.manual_seed(2)
        other = views(each, x, mode="batch")
        torch.testing.assert_close(one, other)
