"""A batch of several groups: what is drawn once for a call is drawn for each group, on every path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from oracle_form import sample
from parity import to_numpy
from torch import Tensor

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.torch import functional
from attentiondrop.torch.attach.attend import attend
from attentiondrop.torch.attach.sites import Site
from attentiondrop.torch.call.blocks import Blocks
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import Driven, Excerpt, LogitShape, active_leaves, needs_calls_for_groups
from attentiondrop.torch.draws import Stream, draw_seed, group_seed
from attentiondrop.torch.functional import Attended

GROUPS, SHAPE = 3, LogitShape(6, 2, 9, 9)
BLUR = ad.BlurSmoothing(sigma_max=2.0, sigma_min=0.3)
#: One call cannot serve its groups.
BLUR_OF_HEADS = ad.BlurSmoothing(sigma_max=2.0, sampling="head")


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return list(torch.randn(3, SHAPE.batch, SHAPE.heads, SHAPE.rows, 8, dtype=dtype).requires_grad_().unbind())


def call(
    q: Tensor, k: Tensor, v: Tensor, spec: Any, seed: Tensor, groups: int, backend: Any = "auto", **options: Any
) -> Tensor:
    return functional.perturbed_attention(
        q, k, v, spec, Options(**options), backend=backend, seed=seed, groups=groups
    ).output


@pytest.mark.parametrize("backend", ["eager", "fused"])
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (BLUR, {}),
        (BLUR, {"is_causal": True}),
        (ad.BlurSmoothing(sigma_max=2.0, edges="renormalize"), {"attn_mask": torch.arange(9) != 4}),
        (ad.BlurSmoothing(sigma_max=2.0, axes="both"), {}),
        (ad.Compose([BLUR, ad.HardMasking(p=0.5, k=3), ad.DropHead(0.3)]), {}),
        (ad.Compose([BLUR, ad.DropKey(p=0.3, by="column"), ad.AttentionDropout(0.3)]), {}),
    ],
    ids=str,
)
def test_a_call_of_groups_is_that_of_the_oracle(spec: ad.Spec, options: dict[str, Any], backend: str) -> None:
    """The oracle knows no groups: it blurs each sample by the sigma of its group."""
    torch.manual_seed(0)
    q, k, v = inputs()
    seed = draw_seed(q)
    have = call(q, k, v, spec, seed, GROUPS, backend, **options)

    draws: Any = to_numpy(sample(spec, seed, SHAPE))
    sigmas = np.repeat(to_numpy(Stream(seed, 0).uniform_vector(GROUPS)), SHAPE.batch // GROUPS)
    parts = spec.parts if isinstance(spec, ad.Compose) else [spec]
    by_sample = [ad.from_dict({**parts[0].to_dict(), "sampling": "sample"}), *parts[1:]]
    visible = options.get("attn_mask")
    want = reference.attention(
        *map(to_numpy, (q, k, v)),
        ad.Compose(by_sample),
        [sigmas, *(draws[1:] if len(parts) > 1 else [])],
        attn_mask=None if visible is None else visible.numpy()[None, None, None],
        is_causal=options.get("is_causal", False),
    )
    # (The fused path blurs keys in the compute dtype, which is that of the inputs here.)
    np.testing.assert_allclose(have.detach().numpy(), want.output, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("in_tensors", [False, True])
@pytest.mark.parametrize(("length", "is_causal"), [(65, False), (150, True), (300, False), (300, True)])
def test_kernels_know_groups(length: int, is_causal: bool, in_tensors: bool, is_compiled: bool) -> None:
    """Short and longer rows: blurred keys, and the band under a causal mask. The bound is that of `test_parity`."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 6, 4, length, 32, device="cuda", dtype=torch.bfloat16).requires_grad_().unbind()
    # The groups draw 0.06, 0.79 and 0.58: with another seed their sigmas may be too close to be told apart.
    seed, grad = torch.tensor(8, device="cuda"), torch.randn_like(q)
    spec: ad.Spec | Driven = BLUR
    if in_tensors:  # as in a compiled model with schedules
        spec = Driven(ad.BlurSmoothing(sigma_max=2.0), {0: {"sigma_max": torch.tensor(2.0, device="cuda")}})

    def attend(backend: str) -> Tensor:
        return call(q, k, v, spec, seed, GROUPS, backend, is_causal=is_causal)

    def error(have: Tensor, want: Tensor) -> float:
        return float((have - want).detach().float().norm() / want.detach().float().norm())

    fused = torch.compile(attend, fullgraph=True) if is_compiled else attend
    have, want = fused("fused"), attend("eager")
    for a, b in zip(
        (have, *torch.autograd.grad(have, (q, k, v), grad)),
        (want, *torch.autograd.grad(want, (q, k, v), grad)),
        strict=True,
    ):
        assert error(a, b) < 2 * torch.finfo(torch.bfloat16).eps
    assert error(have, call(q, k, v, spec, seed, 1, "eager", is_causal=is_causal)) > 0.05


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("spec", [BLUR, ad.HardMasking(p=0.5, k=3)], ids=str)
def test_a_known_call_has_its_own_number_of_groups(spec: ad.Spec, device: str) -> None:
    """Calls that look alike are remembered: those with other groups are others."""
    torch.manual_seed(0)
    q, k, v = (x.to(device) for x in inputs(torch.float32))
    seed = draw_seed(q)
    found = [call(q, k, v, spec, seed, groups) for groups in (1, GROUPS, 1, GROUPS)]
    assert all(x.shape == found[0].shape for x in found)
    if device == "cpu":
        assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
        assert torch.equal(found[0], found[1]) == (spec is not BLUR)
        # The first group has the draws of a call without groups.
        first = SHAPE.batch // GROUPS
        torch.testing.assert_close(found[0][:first], found[1][:first])


def test_some_rows_of_the_first_samples_have_the_draws_of_their_groups() -> None:
    (leaf,) = active_leaves(BLUR, torch.tensor(7), torch.float32, GROUPS)
    whole = leaf.draw(SHAPE)
    assert whole.shape == (SHAPE.batch,) and len(set(whole.tolist())) == GROUPS
    some = leaf._replace(excerpt=Excerpt(SHAPE, torch.tensor([1, 4]))).draw(SHAPE._replace(batch=3, rows=2))
    assert torch.equal(some, whole[:3])


def attend_to_views(q: Tensor, k: Tensor, v: Tensor, spec: ad.Spec, backend: str, **options: Any) -> Attended:
    """A call of a module whose batch holds a view in each of the groups."""
    stack = SimpleNamespace(views=GROUPS, belongs=lambda *call: True, check=lambda *call: None)
    site = Site("", spec, "auto", "sdpa", views=GROUPS, stacks=(stack,))
    torch.manual_seed(1)
    return attend(site, q, k, v, spec, Options(**options), backend)


def seed_of_view(q: Tensor, group: int) -> Tensor:
    """The seed that this module gives one of the groups."""
    torch.manual_seed(1)
    return group_seed(draw_seed(q), group)


PART = SHAPE.batch // GROUPS


@pytest.mark.parametrize("samples", [1, PART, SHAPE.batch])
def test_with_blocks_each_group_has_a_call_of_its_own(samples: int) -> None:
    """Blocks of as many samples as a group has belong to each group."""
    torch.manual_seed(0)
    q, k, v = inputs()
    states = torch.rand(samples, 1, 3, 3).argsort(-1) > 0
    have = attend_to_views(q, k, v, BLUR, "auto", blocks=Blocks(states, 3)).output
    for group in range(GROUPS):
        own = slice(group * PART, (group + 1) * PART)
        blocks = Blocks(states[own] if samples == SHAPE.batch else states, 3)
        want = call(q[own], k[own], v[own], BLUR, seed_of_view(q, group), 1, blocks=blocks)
        torch.testing.assert_close(have[own], want)


@pytest.mark.parametrize(
    ("spec", "keys", "hiding"),
    [(BLUR, PART, SHAPE.batch), (BLUR, SHAPE.batch, PART), (BLUR_OF_HEADS, SHAPE.batch, SHAPE.batch)],
    ids=str,
)
def test_what_has_the_samples_of_a_group_belongs_to_each_group(spec: ad.Spec, keys: int, hiding: int) -> None:
    """Keys and values, masks and biases. The weights of all groups are joined."""
    torch.manual_seed(0)
    q, k, v = inputs()
    k, v = k[:keys], v[:keys]
    mask, bias = torch.rand(hiding, 1, 9, 9) > 0.2, torch.randn(hiding, 1, 9, 9, dtype=q.dtype)
    have = attend_to_views(q, k, v, spec, "eager", attn_mask=mask, bias=bias)
    for group in range(GROUPS):
        own = slice(group * PART, (group + 1) * PART)
        k_own, v_own, m_own, b_own = (x[own] if len(x) == SHAPE.batch else x for x in (k, v, mask, bias))
        options = Options(attn_mask=m_own, bias=b_own)
        want = functional.perturbed_attention(
            q[own], k_own, v_own, spec, options, backend="eager", seed=seed_of_view(q, group)
        )
        torch.testing.assert_close(have.output[own], want.output)
        assert have.weights is not None
        torch.testing.assert_close(have.weights[own], want.weights)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blur", False),
        ("blur(sampling=sample)+hard+drophead", False),
        ("headmask+temperature+noise+dropattention(by=column)", False),
        ("blur(sampling=head)", True),
        ("hard+oneof(hard,blur)", True),
        ("blur(sigma_max=linear(start=0.0,end=2.0))", False),
        ("blur(sigma_min=0.1,sigma_max=2.0)", False),
        ("blur(sigma_min=0.1,sigma_max=linear(start=0.1,end=2.0))", True),
        ("hard+blur(sigma_min=constant(value=0.0))", True),
        ("blur(sigma_min=constant(value=0.0),sampling=sample)", False),
    ],
)
def test_what_cannot_serve_groups_in_one_call(text: str, expected: bool) -> None:
    assert needs_calls_for_groups(ad.parse(text)) == expected
