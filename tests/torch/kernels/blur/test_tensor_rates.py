"""Blur whose rates are tensors: the draws of rates that are numbers, without the hash in operations of torch."""

from __future__ import annotations

import pytest
import torch
from blur_cases import error
from torch import Tensor

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch.call import leaves
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import Driven, LogitShape, active_leaves
from attentiondrop.torch.draws import Stream
from attentiondrop.torch.eager.drawn_vectors import drawn_uniforms
from attentiondrop.torch.eager.table import blur_sigma
from attentiondrop.torch.functional import perturbed_attention
from attentiondrop.torch.fused.blur_arguments import blur_arguments
from attentiondrop.torch.kernels import support

pytest.importorskip("triton")

from attentiondrop.torch.kernels.shared.drawn_uniforms import uniform_vector

# The interpreter computes with NumPy scalars, whose wrap-around (meant, in a hash) warns.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@pytest.mark.parametrize("seed", [0, 3, 0x7EDCBA9876543210, 2**63 - 1])
def test_uniforms_are_those_of_the_hash(seed: int, device: str) -> None:
    for stream, length in ((0, 1), (5, 300), (2**20, 0)):
        found = uniform_vector(torch.tensor(seed, device=device), stream, length)
        assert torch.equal(found.cpu(), Stream(torch.tensor(seed), stream).uniform_vector(length))


def driven(spec: Spec, device: str, learned: bool = False) -> Driven:
    """The spec with a tensor for each sigma that is not 0."""
    values = {
        place.number: {
            field: torch.tensor(getattr(place.spec, field), device=device, requires_grad=learned)
            for field in ("sigma_max", "sigma_min")
            if getattr(place.spec, field, 0.0) > 0
        }
        for place in leaves.places(spec)
    }
    return Driven(spec, values)


def computed(drop: Spec | Driven, device: str, causal: bool) -> list[Tensor]:
    """Output and gradients of a fused call, with the same inputs and draws each time."""
    torch.manual_seed(1)
    inputs = [torch.randn(2, 1 if causal else 2, 5, 3).to(device).requires_grad_() for _ in range(3)]
    output = perturbed_attention(*inputs, drop, Options(is_causal=causal), backend="fused").output
    return [output.detach(), *torch.autograd.grad(output.square().sum(), inputs)]


@pytest.fixture
def no_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash in operations of torch, or in NumPy, is an error."""

    def fail(*_: object) -> None:
        raise AssertionError("a draw that is not by a kernel")

    monkeypatch.setattr(leaves, "Stream", fail)


@pytest.mark.usefixtures("no_operations")
@pytest.mark.parametrize(
    "sampling, causal", [("batch", False), ("sample", True), pytest.param("head", False, marks=pytest.mark.slow)]
)
def test_a_tensor_blurs_as_its_number_does(sampling: str, causal: bool, device: str) -> None:
    spec = ad.BlurSmoothing(0.7, width=3, sampling=sampling)
    for have, want in zip(computed(driven(spec, device), device, causal), computed(spec, device, causal), strict=True):
        assert torch.equal(have, want)


@pytest.mark.usefixtures("no_operations")
def test_a_least_sigma_that_is_a_tensor(device: str) -> None:
    """Here the kernels get sigma itself. For numbers they may round its product and sum at once."""
    spec = ad.BlurSmoothing(0.7, width=3, sigma_min=0.2)
    for have, want in zip(computed(driven(spec, device), device, False), computed(spec, device, False), strict=True):
        assert error(have, want.double()) < 1e-6


@pytest.mark.parametrize(
    ("spec", "groups"),
    [(ad.DropHead(0.5), 1), (ad.HeadMask(1), 3), (ad.BlurSmoothing(sampling="head"), 1), (ad.BlurSmoothing(), 3)],
    ids=str,
)
def test_draws_of_samples_heads_and_groups_take_one_launch(
    spec: Spec, groups: int, device: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shape, seed = LogitShape(6, 5, 7, 7), torch.tensor(12, device=device)
    (leaf,) = active_leaves(spec, seed, torch.float32, groups)
    with monkeypatch.context() as no_kernels:
        no_kernels.setattr(support, "KERNEL_DEVICES", set())
        want = drawn_uniforms(leaf, shape)
    request.getfixturevalue("no_operations")
    assert torch.equal(drawn_uniforms(leaf, shape), want)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_choice_gates_a_tensor(chosen: bool, device: str) -> None:
    spec = ad.OneOf([ad.BlurSmoothing(0.7, width=3), ad.DropHead(0.0)], weights=[1.0, 0.0] if chosen else [0.0, 1.0])
    (leaf, _) = active_leaves(driven(spec, device), torch.tensor(3, device=device), torch.float32)
    gate, sigma = blur_arguments(leaf)
    assert gate is not None and torch.equal(gate.cpu(), torch.tensor(0.7 if chosen else 0.0)) and sigma[2:4] == (0, 1)


@pytest.mark.parametrize("sampling", ["batch", "sample", "head"])
@pytest.mark.parametrize("learned", [False, True])
def test_sigmas_are_those_of_eager_attention(
    learned: bool, sampling: str, device: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """And so are the gradients of what is learned."""
    shape, seed = LogitShape(3, 5, 7, 7), torch.tensor(11, device=device)
    drop = driven(ad.BlurSmoothing(0.7, sigma_min=0.2, sampling=sampling), device, learned)
    (leaf,) = active_leaves(drop, seed, torch.float32)
    with monkeypatch.context() as no_kernels:
        no_kernels.setattr(support, "KERNEL_DEVICES", set())
        want = blur_sigma(leaf, shape, torch.float32)
    request.getfixturevalue("no_operations")
    have = blur_sigma(leaf, shape, torch.float32)
    assert torch.equal(have, want) and have.shape == want.shape
    if learned:
        rates = list(drop.values[0].values())
        for one, other in zip(*(torch.autograd.grad(x.sum(), rates) for x in (have, want)), strict=True):
            assert torch.equal(one, other)
