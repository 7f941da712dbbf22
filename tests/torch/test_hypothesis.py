"""Parity with the oracle over shapes and parameters that nobody chose."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity import Case, errors

import attentiondrop as ad
from attentiondrop.specs import Spec

pytestmark = pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")

rates = st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0.0, 1.0)
leaves: st.SearchStrategy[Spec] = st.one_of(
    st.builds(ad.HardMasking, p=rates, k=st.integers(1, 20), fill=st.sampled_from(["zero", "-inf"])),
    st.builds(
        lambda low, more, **fields: ad.BlurSmoothing(low + more, sigma_min=low, **fields),
        st.floats(0.0, 2.0),
        st.floats(0.0, 2.0),
        width=st.integers(0, 5).map(lambda r: 2 * r + 1),
        edges=st.sampled_from(["zero", "renormalize"]),
        sampling=st.sampled_from(["batch", "sample", "head"]),
    ),
    st.builds(ad.GaussianNoise, st.floats(0.0, 2.0)),
    st.builds(ad.DropKey, rates, st.sampled_from(["element", "column"])),
    st.builds(ad.DropHead, rates),
    st.builds(ad.AttentionDropout, rates),
    st.builds(ad.DropAttention, rates, st.sampled_from(["element", "column"]), st.integers(1, 5)),
)
specs = (
    leaves
    | st.lists(leaves, min_size=1, max_size=3).map(ad.Compose)
    | st.lists(leaves, min_size=1, max_size=3).map(ad.OneOf)
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    key_heads = draw(st.integers(1, 3))
    mask = draw(
        st.sampled_from(["", "keys", "blind sample", "materialised keys", "causal keys", "pairs", "additive -inf"])
    )
    return Case(
        "drawn",
        batch=draw(st.integers(2, 3)),
        heads=key_heads * draw(st.integers(1, 3)),
        key_heads=key_heads,
        rows=draw(st.integers(1, 12)),
        columns=draw(st.integers(2, 12)),
        size=draw(st.integers(1, 9)),
        value_size=draw(st.integers(1, 9)),
        is_causal=not mask and draw(st.booleans()),
        mask=mask,
    )


@pytest.mark.no_cover
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs, case=cases(), seed=st.integers(0, 1000))
def test_parity(spec: Spec, case: Case, seed: int) -> None:
    for backend in ("eager", "auto"):
        found = errors(spec, case, torch.float64, backend, seed=seed)
        # A gradient that all but cancels has no small relative error: 1e-12 leaves it some thousand roundings.
        assert max(found.values()) <= 1e-12, (backend, found)
