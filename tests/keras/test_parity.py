"""Every regulariser against the oracle with identical draws, values and gradients, on the backend at hand."""

from __future__ import annotations

import itertools
import warnings

import keras
import ml_dtypes
import numpy as np
import pytest
from every_regulariser import examples
from keras_parity import BACKEND, CASES, Case, errors, value_and_gradients

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop.specs import REGISTRY, Spec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS: list[Spec] = [
        ad.HardMasking(p=0.4, k=3),
        ad.HardMasking(p=0.4, k=3, fill="-inf"),
        ad.HardMasking(p=1.0, k=100, fill="-inf"),
        ad.HardMasking(p=0.4, k=10),
        ad.BlurSmoothing(sigma_max=1.5),
        ad.BlurSmoothing(sigma_max=0.0),
        ad.BlurSmoothing(sigma_max=1.5, width=7, sigma_min=0.2, edges="renormalize", sampling="sample"),
        ad.BlurSmoothing(sigma_max=1.5, width=3, sampling="head"),
        ad.GaussianNoise(sigma=0.7),
        ad.DropKey(p=0.4),
        ad.DropKey(p=1.0),
        ad.DropHead(p=0.4),
        ad.DropHead(p=1.0),
        ad.AttentionDropout(p=0.3),
        ad.AttentionDropout(p=1.0),
        ad.DropAttention(p=0.6, by="column"),
        ad.DropAttention(p=1.0, span=2),
        ad.HeadMask(3),
        ad.OneOf([ad.DropAttention(0.5), ad.HeadMask(2)]),
        ad.Compose([ad.HardMasking(p=0.3, k=2, fill="-inf"), ad.BlurSmoothing(1.0), ad.AttentionDropout(0.2)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.BlurSmoothing(0.7, edges="renormalize"), ad.DropHead(0.3)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.Consistency()]),
        ad.OneOf([ad.HardMasking(p=0.5), ad.BlurSmoothing(1.0), ad.DropHead(0.5)]),
        ad.OneOf([ad.OneOf([ad.GaussianNoise(1.0), ad.DropKey(0.5)]), ad.AttentionDropout(0.5)], weights=[0.9, 0.1]),
    ]
    SPECS += [spec for spec in examples() if spec not in SPECS]

DTYPES = ["float64", "float32", "bfloat16"]


def tolerance(spec: Spec, dtype: str) -> float:
    """What the dtype allows, as a relative error of a whole tensor.

    The logits are float32 (float64 for float64): 16-bit results carry one final rounding, half an eps. Blurred keys and
    the probabilities of the backend's own attention are rounded as well: three roundings more at the most.
    """
    eps = float(ml_dtypes.finfo(dtype).eps)
    if dtype != "bfloat16":
        return 16 * eps
    on_keys = {type(leaf) for leaf in spec.leaves()} <= {ad.BlurSmoothing, ad.DropHead, ad.HeadMask, ad.Consistency}
    return (2.0 if on_keys else 0.5) * eps


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_matches_the_oracle(spec: Spec, part: int) -> None:
    # torch runs every combination. Elsewhere each is a tracing or a compilation, and cases and dtypes take turns: every
    # spec meets several of them, and every one of them meets several specs.
    turn, stride = SPECS.index(spec), {"torch": 1, "tensorflow": 7, "jax": 13}[BACKEND]
    for place, (case, dtype) in enumerate(itertools.product(CASES, DTYPES)):
        if (place + turn) % (2 * stride) == part * stride:
            found = errors(spec, case, dtype)
            assert max(found.values()) <= tolerance(spec, dtype), (str(case), dtype, found)


@pytest.mark.parametrize(
    "edges, sampling",
    [
        ("zero", "batch"),
        ("renormalize", "sample"),
        ("renormalize", "head"),
        pytest.param("renormalize", "batch", marks=pytest.mark.slow),
        pytest.param("zero", "sample", marks=pytest.mark.slow),
        pytest.param("zero", "head", marks=pytest.mark.slow),
    ],
)
def test_blur_of_both_axes(edges: str, sampling: str) -> None:
    spec = ad.BlurSmoothing(sigma_max=1.5, axes="both", edges=edges, sampling=sampling)
    names = ["plain", "key padding", "cross", "grouped", "other keys for other heads"]
    for case in CASES:
        if case.name in (names[:2] if BACKEND == "jax" else names):
            for dtype in ("float64", "float32"):
                found = errors(spec, case, dtype)
                assert max(found.values()) <= tolerance(spec, dtype), (str(case), dtype, found)
    for case in (Case("causal", is_causal=True), Case("pairs", mask="pairs")):
        with pytest.raises(ad.ArgumentError, match=r'axes: expected "keys" under a .*mask.*, received "both"'):
            errors(spec, case, "float32")


def test_a_blur_of_both_axes_sees_what_logits_hide() -> None:
    spec = ad.BlurSmoothing(1.0, sigma_min=1.0, axes="both")
    rng = np.random.default_rng(0)
    logits, keys = rng.normal(size=(2, 3, 4, 5)).astype("float32"), rng.random((2, 1, 1, 5)) < 0.7
    want = keras.ops.convert_to_numpy(ak.attention_weights(logits, spec, keys))
    for hidden in (-np.inf, np.finfo("float32").min):
        found = ak.attention_weights(np.where(keys, logits, np.float32(hidden)), spec)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(found), want, atol=1e-6)
        # Rows that see different keys cannot be mixed. Values cannot be read in a graph, so it is no error.
        causal = np.where(np.tril(np.ones((4, 5), bool)), logits, np.float32(hidden))
        assert np.isnan(keras.ops.convert_to_numpy(ak.attention_weights(causal, spec))).any(-1).all()
        plain = keras.ops.convert_to_numpy(ak.attention_weights(causal, spec, training=False))
        np.testing.assert_allclose(plain.sum(-1), 1, atol=1e-6)


def test_large_logits_and_blind_rows_give_no_nan() -> None:
    rng = np.random.default_rng(0)
    q, k, v, grad = (rng.normal(size=(2, 5, 4, 4)) * scale for scale in (200, 20, 1, 1))
    mask = rng.random((2, 4, 5, 5)) < 0.5
    mask[:, :, 3] = False
    for spec in SPECS if BACKEND != "jax" else SPECS[::7]:
        for dtype in ("float16", "float32"):

            def call(*tensors: object) -> object:
                return ak.attention(*tensors, spec, mask=mask, seed=1)

            output, *grads = value_and_gradients(call, [q, k, v], grad, dtype)
            assert all(np.isfinite(x).all() for x in (output, *grads)), (str(spec), dtype)
            assert not output[:, 3].any()


def test_every_registered_spec_is_covered() -> None:
    covered = {type(leaf) for spec in SPECS for leaf in spec.leaves()} | {type(spec) for spec in SPECS}
    assert covered == set(REGISTRY.values())


def test_bad_input_is_named() -> None:
    x, whole = keras.ops.zeros((2, 5, 2, 4)), np.zeros((2, 5, 2, 4), "int32")
    both = ad.parse("dropkey+blur")
    cases = [
        (lambda: ak.attention(x, x, x, "hard"), "drop: expected a spec such as .*, or None, received 'hard'"),
        (lambda: ak.attention(x, x, x, ad.Consistency()), "drop: expected a spec that acts on attention"),
        (lambda: ak.attention(x, x[:, :3], x, ad.DropKey()), r"expected \[B, N, H, D\]"),
        (lambda: ak.attention(x[0], x, x, ad.DropKey()), "expected .batch, positions, heads, size."),
        (lambda: ak.attention_weights(x[0], ad.DropKey()), "logits: expected .batch, heads, queries, keys."),
        (lambda: ak.attention(x, x, x, ad.DropKey(), seed=0.5), "seed: expected an int"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), seed=np.zeros(3, "int32")), "seed: expected two integers"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), draws=np.zeros(3)), r"draws: expected shape \[2, 2, 5, 5\]"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), draws=np.zeros((2, 2, 5, 4))), "draws: expected shape"),
        (lambda: ak.attention(x, x, x, ad.parse("hard+blur"), draws=0), "draws: expected a list of 2"),
        (lambda: ak.attention(x, x, x, ad.parse("oneof(hard,blur)"), draws=0), "draws: expected a pair"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), seed=np.zeros(2)), "seed: expected two integers"),
        (lambda: ak.attention(x[:1], x, x, ad.DropKey()), r"expected \[B, N, H, D\]"),
        (lambda: ak.attention(x, x[:, :, :0], x[:, :, :0], ad.DropKey()), r"expected \[B, N, H, D\]"),
        (lambda: ak.attention(whole, whole, whole, ad.DropKey()), "query: expected a floating-point tensor"),
        (lambda: ak.attention_weights(whole), "logits: expected a floating-point tensor, received 'dtype int32'"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), mask=np.ones((1, 1, 1, 5, 5))), "mask: expected at most 4"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), mask=np.ones((3, 3), bool)), r"mask: .* received \[3, 3\]"),
        (lambda: ak.attention(x, x, x, ad.DropKey(), bias=np.ones(3)), r"bias: expected .* \[2, 2, 5, 5\], received"),
        # The weights would grow to the mask.
        (lambda: ak.attention_weights(x[:, :, :1], mask=np.ones((2, 4), bool)), r"broadcasts to \[2, 5, 1, 4\]"),
        (lambda: ak.attention(x, x, x, both, seed=0, rates=np.ones(2)), r"3 numbers \(dropkey.p, blur.sigma_max, blur"),
        (lambda: ak.attention(x, x, x, both, seed=0, rates=np.ones(4)), "rates: expected 3 numbers"),
        (lambda: ak.attention_weights(x, ad.BlurSmoothing(axes="both"), is_causal=True), 'axes: expected "keys" under'),
        (lambda: ak.attention_weights(keras.Input((2, 5, 5)), ad.DropKey()), "logits: expected a tensor with values"),
    ]
    for call, message in cases:
        with pytest.raises(ad.AttentionDropError, match=message):
            call()
