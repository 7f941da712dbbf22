"""Derivatives beyond the first backward: eager computes them, fused operators say that they cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import attentiondrop as ad
from attentiondrop.torch import attention

SPECS = [
    ad.HardMasking(p=0.5, k=3),
    ad.HardMasking(p=0.5, k=3, fill="-inf"),
    ad.DropKey(0.3),
    ad.GaussianNoise(1.0),
    ad.AttentionDropout(0.3),
    ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0),
    ad.DropHead(0.3),
]
#: Those that run in operators of our own on a CPU; the others run in SDPA, whose errors are torch's.
INSIDE = [(spec, causal) for spec in SPECS[:5] for causal in (False, True)] + [(SPECS[5], True)]


def tensors() -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 7, 4, generator=g, dtype=torch.float64) for _ in range(3)]


def run_of(spec: ad.Spec, backend: str, is_causal: bool = False) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attention(q, k, v, spec, is_causal=is_causal, backend=backend)

    return run


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_forward_mode(spec: ad.Spec, backend: str) -> None:
    inputs = tensors()
    tangents = [torch.randn_like(x) for x in inputs]
    run = run_of(spec, backend, is_causal=True)
    _, found = torch.func.jvp(run, tuple(inputs), tuple(tangents))
    step = 1e-6
    ahead, behind = (run(*(x + sign * step * t for x, t in zip(inputs, tangents, strict=True))) for sign in (1, -1))
    assert torch.allclose(found, (ahead - behind) / (2 * step), atol=1e-7)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        assert torch.equal(forward_ad.unpack_dual(run(*duals)).tangent, found)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_forward_mode_of_a_fused_path_is_refused(spec: ad.Spec) -> None:
    inputs = tensors()
    with pytest.raises(ad.BackendError, match='backend="fused" cannot run here: fused operators have no forward-mode'):
        torch.func.jvp(run_of(spec, "fused"), tuple(inputs), tuple(inputs))
    # A level alone changes nothing: what has no tangent runs.
    with forward_ad.dual_level():
        run_of(spec, "fused")(*inputs)


def test_forward_mode_of_a_gradient_is_refused() -> None:
    inputs = [x.requires_grad_() for x in tensors()]
    output = run_of(SPECS[0], "fused")(*inputs)
    with forward_ad.dual_level(), pytest.raises(ad.BackendError, match="no forward-mode derivative of its gradient"):
        torch.autograd.grad(output, inputs, forward_ad.make_dual(torch.ones_like(output), torch.ones_like(output)))


@pytest.mark.parametrize("spec, is_causal", INSIDE, ids=str)
def test_second_derivatives_of_a_fused_path_are_refused(spec: ad.Spec, is_causal: bool) -> None:
    inputs = [x.requires_grad_() for x in tensors()]
    output = run_of(spec, "fused", is_causal)(*inputs)
    first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    with pytest.raises(ad.BackendError, match='has no second derivative: use backend="eager", which computes it'):
        first[0].square().sum().backward()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_second_derivatives_of_eager(spec: ad.Spec) -> None:
    inputs = [x.requires_grad_() for x in tensors()]
    assert torch.autograd.gradgradcheck(run_of(spec, "eager"), inputs, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[5]], ids=str)
def test_the_gradients_of_torch_func(spec: ad.Spec) -> None:
    inputs = tensors()

    def loss(backend: str) -> Callable[..., Tensor]:
        return lambda *x: run_of(spec, backend, is_causal=True)(*x).square().sum()

    leaves = [x.clone().requires_grad_() for x in inputs]
    want = torch.autograd.grad(loss("fused")(*leaves), leaves)
    found = torch.func.grad(loss("auto"), argnums=(0, 1, 2))(*inputs)
    assert all(torch.allclose(one, other) for one, other in zip(found, want, strict=True))
    with pytest.raises(ad.BackendError, match="do not know the gradients of"):
        torch.func.grad(loss("fused"))(*inputs)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[5]], ids=str)
def test_vmap_gives_every_sample_what_a_call_of_its_own_gives(spec: ad.Spec) -> None:
    stacked = [torch.stack([x, 2 * x]) for x in tensors()]
    run = run_of(spec, "fused", is_causal=True)
    found = torch.func.vmap(run, randomness="different")(*stacked)
    torch.manual_seed(5)
    want = [attention(*(x[i] for x in stacked), spec, is_causal=True, backend="fused") for i in range(2)]
    assert torch.allclose(found, torch.stack(want))
