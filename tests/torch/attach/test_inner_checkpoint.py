"""A module that checkpoints a part of itself: the backward computes that part again, perturbed as before, or refuses."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach import first_step

#: torch's own, for a checkpoint inside of another.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")

SPECS = [
    "hard(p=0.4,k=3)",
    "blur(sigma_max=1.5)",
    "noise(sigma=0.5)",
    "dropkey(p=0.3)",
    "drophead(p=0.5)",
    "attndropout(p=0.3)",
]


class Attention(nn.Module):
    """`reentrant` None: no checkpointing."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.qkv, self.out, self.reentrant = nn.Linear(16, 48), nn.Linear(16, 16), reentrant

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = self.core(q, k, v) if self.reentrant is None else self.checkpointed(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def checkpointed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(self.core, q, k, v, use_reentrant=self.reentrant)


class InLambda(Attention):
    def checkpointed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(lambda q, k, v: self.core(q, k, v), q, k, v, use_reentrant=self.reentrant)


class Bare(Attention):
    def checkpointed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(F.scaled_dot_product_attention, q, k, v, use_reentrant=self.reentrant)


class Own(torch.autograd.Function):
    """Somebody's own checkpointing."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = F.scaled_dot_product_attention(*inputs)
        return torch.autograd.grad(output, inputs, gradient)


class InFunction(Attention):
    def checkpointed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Own.apply(q, k, v)


def gradients(
    model: nn.Module, x: Tensor, run: Callable[[nn.Module, Tensor], Tensor] = lambda m, x: m(x)
) -> list[Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    output = run(model, x)
    output.sin().mean().backward()
    return [output.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def pair(cls: type[Attention], reentrant: bool, spec: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """The module with and without its checkpointing, with equal weights, attached."""
    torch.manual_seed(0)
    plain, inner = Attention(None).double(), cls(reentrant).double()
    inner.load_state_dict(plain.state_dict())
    for module in (plain, inner):
        attach(module, spec)
    return plain, inner, torch.randn(2, 7, 16, dtype=torch.float64)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("cls", [Attention, InLambda])
def test_a_checkpointed_method(cls: type[Attention], spec: str, reentrant: bool) -> None:
    plain, inner, x = pair(cls, reentrant, spec)
    for have, want in zip(gradients(inner, x), gradients(plain, x), strict=True):
        assert torch.equal(have, want)
    inner.eval(), plain.eval()
    assert torch.equal(inner(x), plain(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_around_and_inside(reentrant: bool) -> None:
    plain, inner, x = pair(Attention, reentrant, SPECS[0])
    around = gradients(inner, x, lambda m, x: checkpoint(m, x, use_reentrant=reentrant))
    for have, want in zip(around, gradients(plain, x), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_around_a_site(spec: str, reentrant: bool) -> None:
    plain, _, x = pair(Attention, reentrant, spec)
    around = gradients(plain, x, lambda m, x: checkpoint(m, x, use_reentrant=reentrant))
    for have, want in zip(around, gradients(plain, x), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("cls", [Bare, InFunction])
def test_what_is_no_method_is_refused_by_name(cls: type[Attention], reentrant: bool) -> None:
    _, inner, x = pair(cls, reentrant, SPECS[0])
    model = nn.Sequential(inner)
    with pytest.raises(
        ad.AttachError, match=rf"\({cls.__name__}\) calls its attention inside of a checkpointed function"
    ):
        model(x.requires_grad_())
    with torch.no_grad():  # no backward, nothing to be wrong
        inner(x)


def test_compiled_it_is_refused_or_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the compiler hides a checkpointed region from function modes: no gradient, rather than a wrong one."""
    torch._dynamo.reset()
    plain, inner, x = pair(Attention, False, SPECS[0])
    want = gradients(plain, x)
    # The compiler gives up on the whole and goes on with its parts: no first step to look at either.
    monkeypatch.setattr(first_step, "FindUnperturbed", None)
    refusal: ad.AttachError | None = None
    try:
        have = gradients(torch.compile(inner, backend="eager"), x)
    except ad.AttachError as error:
        refusal = error
    if refusal is None:  # torch 2.11 runs the region by itself
        torch.testing.assert_close(have, want, rtol=0, atol=0)
    else:
        assert re.match(r"the model \(Attention\) (has a branch|calls its attention)", str(refusal))
