"""Every regulariser against the oracle with identical draws, over masks, shapes, dtypes and backends."""

from __future__ import annotations

import warnings

import pytest
import torch
from every_regulariser import examples
from parity import CASES, Case, errors, relative_error, to_numpy

import attentiondrop as ad
from attentiondrop.specs import REGISTRY, Spec
from attentiondrop.torch import attention

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS: list[Spec] = [
        ad.HardMasking(p=0.4, k=3),
        ad.HardMasking(p=0.4, k=3, fill="-inf"),
        ad.HardMasking(p=0.3, k=100),
        ad.HardMasking(p=0.4, k=3, heads="stratified"),
        ad.HardMasking(p=0.4, k=100, fill="-inf", heads="stratified"),
        ad.HardMasking(p=0.0, k=3),
        ad.HardMasking(p=1.0, k=4),
        ad.HardMasking(p=1.0, k=100, fill="-inf"),
        ad.BlurSmoothing(sigma_max=1.5),
        ad.BlurSmoothing(sigma_max=0.0),
        ad.BlurSmoothing(sigma_max=1.5, width=1),
        ad.BlurSmoothing(sigma_max=1.5, width=7, sigma_min=0.2, edges="renormalize", sampling="sample"),
        ad.BlurSmoothing(sigma_max=1.5, width=3, sampling="head"),
        ad.BlurSmoothing(sigma_max=1.5, width=15, edges="renormalize"),
        ad.GaussianNoise(sigma=0.7),
        ad.DropKey(p=0.4),
        ad.DropKey(p=1.0),
        ad.DropHead(p=0.4),
        ad.DropHead(p=1.0),
        ad.AttentionDropout(p=0.3),
        ad.AttentionDropout(p=1.0),
        ad.DropAttention(p=0.4, span=2),
        ad.DropAttention(p=0.6, by="column"),
        ad.DropAttention(p=1.0),
        ad.HeadMask(2),
        ad.Compose([ad.DropKey(0.2), ad.AttentionDropout(0.2), ad.DropAttention(0.3), ad.HeadMask(2)]),
        ad.OneOf([ad.DropAttention(0.5), ad.HeadMask(2)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.HeadMask(2)]),
        ad.Compose([ad.HardMasking(p=0.3, k=2, fill="-inf"), ad.BlurSmoothing(1.0), ad.AttentionDropout(0.2)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.DropKey(0.3), ad.GaussianNoise(0.5), ad.DropHead(0.3)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.BlurSmoothing(0.7, width=3, edges="renormalize"), ad.DropHead(0.3)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.Consistency()]),
        ad.OneOf([ad.HardMasking(p=0.5), ad.BlurSmoothing(1.0), ad.DropHead(0.5)]),
        ad.OneOf([ad.BlurSmoothing(1.0), ad.DropHead(0.5)], weights=[0.2, 0.8]),
        ad.OneOf([ad.OneOf([ad.GaussianNoise(1.0), ad.DropKey(0.5)]), ad.AttentionDropout(0.5)], weights=[0.9, 0.1]),
    ]
    SPECS += [spec for spec in examples() if spec not in SPECS]

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def dtypes_of(number: int, place: int) -> list[torch.dtype]:
    """float64 and one of the others, which follow each other: each spec and each case meets all of them."""
    return [DTYPES[0], DTYPES[1 + (number + place) % 3]]


def tolerance(dtype: torch.dtype, backend: str) -> float:
    """What the dtype allows, as a relative error of a whole tensor.

    Eager computes in float32 (float64 for float64): 16-bit results carry one final rounding, half an eps. The fused
    path also rounds keys and probabilities to 16 bits, as SDPA does: three roundings more at the most. In the wide
    dtypes both stay within a few eps of accumulated rounding.
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float32, torch.float64):
        return 16 * eps
    return (0.5 if backend == "eager" else 2.0) * eps


@pytest.mark.no_cover
@pytest.mark.parametrize("every_dtype", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_eager_matches_the_oracle(spec: Spec, every_dtype: bool) -> None:
    for place, case in enumerate(CASES):
        for dtype in DTYPES if every_dtype else dtypes_of(SPECS.index(spec), place):
            found = errors(spec, case, dtype, "eager")
            assert max(found.values()) <= tolerance(dtype, "eager"), (str(case), dtype, found)


FUSED = [
    spec
    for spec in SPECS
    if {type(leaf) for leaf in spec.leaves()} <= {ad.BlurSmoothing, ad.DropHead, ad.HeadMask, ad.Consistency}
]
#: Cases that have no fused path for a blur; everything else must run fused.
UNFUSED = {
    "arbitrary boolean",
    "arbitrary boolean, grouped",
    "additive with the lowest value",
    "bias and causal",
    "soft cap",
    "sinks",
}


def has_fused_path(spec: Spec, case: Case) -> bool:
    """What the documentation promises to run without an N x M tensor."""
    blurs = [leaf for leaf in spec.leaves() if isinstance(leaf, ad.BlurSmoothing) and leaf.width > 1]
    several = len(blurs) > 1 and "causal" in case.name
    return not ((blurs and case.name in UNFUSED) or several or case.name in ("soft cap", "sinks"))


@pytest.mark.no_cover
@pytest.mark.parametrize("every_dtype", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", FUSED, ids=str)
def test_fused_matches_the_oracle(spec: Spec, every_dtype: bool) -> None:
    for place, case in enumerate(CASES):
        if not has_fused_path(spec, case):
            with pytest.raises(ad.BackendError, match="cannot run here"):
                errors(spec, case, torch.float32, "fused")
            continue
        for dtype in DTYPES if every_dtype else dtypes_of(FUSED.index(spec), place):
            found = errors(spec, case, dtype, "fused")
            assert max(found.values()) <= tolerance(dtype, "fused"), (str(case), dtype, found)


@pytest.mark.parametrize("edges", ["zero", "renormalize"])
@pytest.mark.parametrize("sampling", ["batch", "sample", "head"])
@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_blur_of_both_axes(edges: str, sampling: str, backend: str) -> None:
    spec = ad.BlurSmoothing(sigma_max=1.5, axes="both", edges=edges, sampling=sampling)
    names = {"plain", "cross", "one query", "one key", "grouped", "key padding", "key padding, blind sample"}
    names |= {"materialised key padding", "additive", "additive with -inf", "bias and key padding"}
    for case in CASES:
        if case.name in names:
            found = errors(spec, case, torch.float64, backend)
            assert max(found.values()) <= tolerance(torch.float64, backend), (str(case), found)


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_dropout_p_together_with_a_spec(backend: str) -> None:
    for spec in (ad.HardMasking(p=0.4, k=3), ad.DropKey(0.2)):
        for case in CASES:
            found = errors(spec, case, torch.float64, backend, dropout_p=0.3)
            assert max(found.values()) <= tolerance(torch.float64, "eager"), (str(case), found)


def test_bias_gradients_match_the_oracle() -> None:
    from parity import LogitShape, numpy_draws

    from attentiondrop import reference

    spec = ad.Compose([ad.HardMasking(p=0.4, k=3), ad.BlurSmoothing(1.0)])
    (q, k, v), grad, _ = Case("plain").make(torch.float64)
    bias = torch.randn(2, 4, 9, 9, dtype=torch.float64, requires_grad=True)
    for backend, drop in (("eager", spec), ("fused", ad.BlurSmoothing(1.0))):
        bias.grad = None
        torch.manual_seed(5)
        attention(q, k, v, drop, attn_mask=bias, backend=backend).backward(grad)
        draws, _ = numpy_draws(drop, 5, LogitShape(2, 4, 9, 9))
        result = reference.attention(*map(to_numpy, (q, k, v)), drop, draws, attn_mask=to_numpy(bias))
        assert relative_error(to_numpy(bias.grad), result.gradients(to_numpy(grad))[3]) < 1e-14


def test_large_logits_give_no_nan() -> None:
    """Logits of some thousands, in half precision, with rows that see nothing."""
    for spec in SPECS:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            (q, k, v), grad, _ = Case("plain").make(dtype)
            q, k = (200 * q).detach().requires_grad_(), (20 * k).detach().requires_grad_()
            mask = torch.rand(2, 4, 9, 9) < 0.5
            mask[:, :, 3] = False
            output = attention(q, k, v, spec, attn_mask=mask)
            output.backward(grad)
            assert all(x.isfinite().all() for x in (output, q.grad, k.grad, v.grad)), (str(spec), dtype)
            assert not output[:, :, 3].any()


def test_ties_go_to_the_lower_key() -> None:
    q, k = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 6, 2)
    v = torch.eye(6).view(1, 1, 6, 6)
    with pytest.warns(ad.AttentionDropWarning):
        spec = ad.HardMasking(p=1.0, k=2)
    weights = attention(q, k, v, spec)[0, 0, 0]
    assert weights[:2].max() < weights[2:].min()
    assert torch.equal(weights[:2], weights[:1].expand(2)) and torch.equal(weights[2:], weights[2:3].expand(4))


def test_every_registered_spec_is_covered() -> None:
    covered = {type(leaf) for spec in SPECS for leaf in spec.leaves()} | {type(spec) for spec in SPECS}
    assert covered == set(REGISTRY.values())
