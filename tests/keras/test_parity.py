"""Every regulariser against the oracle with identical draws, values and gradients, on the backend at hand."""

from __future__ import annotations

import itertools
import warnings

import keras
import ml_dtypes
import numpy as np
import pytest
from every_regulariser import examples
from keras_parity import BACKEND, CASES, Case, errors, relative_error, to_numpy, value_and_gradients

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop import reference
from attentiondrop.keras.regularisers import top_k
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


@pytest.mark.parametrize("case", [Case("self"), Case("cross", rows=5, columns=11)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_an_additive_mask_is_added_in_evaluation_too(case: Case, is_causal: bool, with_bias: bool) -> None:
    """`keras.ops.dot_product_attention` would read its numbers as booleans, and show exactly what it hides."""
    (q, k, v), _, _ = case.make()
    rng = np.random.default_rng(1)
    mask = np.where(rng.random((case.batch, 1, case.rows, case.columns)) < 0.6, rng.normal(), -np.inf)
    mask[..., 0] = 0.0
    bias = rng.normal(size=(1, case.heads, case.rows, case.columns)).astype("float32") if with_bias else None
    want = reference.attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)), attn_mask=mask.astype("float32"), bias=bias, is_causal=is_causal
    ).output.swapaxes(1, 2)
    mask[0, 0, 1] = -np.inf  # a row that sees nothing: as for Keras, any finite result will do
    tensors = [keras.ops.convert_to_tensor(x, dtype="float32") for x in (q, k, v)]
    for options in ({"drop": None}, {"drop": ad.DropKey(0.5), "training": False}):
        have = to_numpy(ak.attention(*tensors, bias=bias, mask=mask.astype("float32"), is_causal=is_causal, **options))
        assert np.isfinite(have).all()
        have[0, 1] = want[0, 1]
        assert relative_error(have, want) < 1e-6
    narrow = [keras.ops.cast(x, "float16") for x in tensors]
    have = to_numpy(ak.attention(*narrow, bias=bias, mask=mask.astype("float32"), is_causal=is_causal, training=False))
    have[0, 1] = want[0, 1]
    assert relative_error(have, want) < 3e-3


def test_evaluation_passes_a_boolean_mask_and_a_scale_on() -> None:
    (q, k, v), _, _ = Case("cross", rows=5, columns=11).make()
    q, k, v = (keras.ops.convert_to_tensor(x, dtype="float32") for x in (q, k, v))
    options = {"mask": np.arange(11)[None, None, None] < 6, "scale": 2.0}
    want = to_numpy(keras.ops.dot_product_attention(q, k, v, **options))
    assert np.array_equal(to_numpy(ak.attention(q, k, v, ad.DropKey(0.5), training=False, **options)), want)
    assert np.array_equal(to_numpy(ak.attention(q, k, v, **options)), want)


def test_an_additive_mask_and_a_bias_add_up_in_training() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 5, 4, 6))
    mask, bias = rng.normal(size=(2, 2, 1, 5, 5)).astype("float32")
    want = reference.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), bias=mask + bias).output.swapaxes(1, 2)
    tensors = [keras.ops.convert_to_tensor(x, dtype="float32") for x in (q, k, v)]
    have = to_numpy(ak.attention(*tensors, ad.DropKey(p=0.0), bias=bias, mask=mask, seed=0))
    assert relative_error(have, want) < 1e-6


def test_half_of_the_lowest_number_hides_a_key() -> None:
    """A sum of masks may reach half of what libraries write for hidden keys; above that, a number is a logit."""
    half = np.finfo("float32").min / 2
    mask = np.array([half, np.nextafter(half, np.float32(0)), 0.0], "float32")
    for spec in (None, ad.DropKey(p=0.0)):
        # With logits that outweigh the second number, only the key that is hidden has no weight.
        logits = np.array([[[[0.0, -half, 0.0]]]], "float32")
        assert to_numpy(ak.attention_weights(logits, spec, mask, seed=0)).ravel().tolist() == [0, 1, 0]
        logits = np.array([[[[-half, 0.0, half]]]], "float32")
        assert to_numpy(ak.attention_weights(logits, spec, mask, seed=0)).ravel()[0] == 0


def test_ties_go_to_the_lower_key() -> None:
    logits = np.ones((1, 1, 1, 6), "float32")
    with pytest.warns(ad.AttentionDropWarning):
        spec = ad.HardMasking(p=1.0, k=2)
    weights = to_numpy(ak.attention_weights(logits, spec, seed=0))[0, 0, 0]
    assert weights[:2].max() < weights[2:].min() and len(set(weights)) == 2
    gone = to_numpy(ak.attention_weights(logits, ad.DropKey(p=1.0), seed=0))[0, 0, 0]
    assert gone.tolist() == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("k", [1, 5, 16, 17, 29])
def test_the_selection_is_that_of_the_oracle(k: int) -> None:
    """Many ties, rows with few visible keys, and both ways of selecting: in rounds and by a threshold."""
    rng = np.random.default_rng(k)
    logits = rng.integers(-3, 4, size=(2, 2, 5, 30)).astype("float32")
    visible = rng.random(logits.shape) < 0.6
    visible[:, :, 0, 3:] = False
    selected = np.asarray(keras.ops.convert_to_numpy(top_k(keras.ops.convert_to_tensor(logits), visible, k)))
    assert np.array_equal(selected, reference.top_k(logits, visible, k))


def test_gradient_of_a_dropped_logit_is_zero() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 1, 2, 6))
    draws = np.zeros((1, 1, 2, 6), "float32")
    grad = np.random.default_rng(1).normal(size=logits.shape)

    def weights(x: object) -> object:
        return ak.attention_weights(x, ad.HardMasking(p=0.1, k=2), draws=draws)

    _, d_logits = value_and_gradients(weights, [logits], grad, "float32")
    dropped = reference.top_k(logits, np.ones_like(logits, dtype=bool), 2)
    assert not d_logits[dropped].any() and d_logits[~dropped].all()


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
    x = keras.ops.zeros((2, 5, 2, 4))
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
        (lambda: ak.attention(x, x, x, ad.DropKey(), mask=np.ones((1, 1, 1, 5, 5))), "mask: expected at most 4"),
        (lambda: ak.attention_weights(x, ad.BlurSmoothing(axes="both"), is_causal=True), 'axes: expected "keys" under'),
        (lambda: ak.attention_weights(keras.Input((2, 5, 5)), ad.DropKey()), "logits: expected a tensor with values"),
    ]
    for call, message in cases:
        with pytest.raises(ad.AttentionDropError, match=message):
            call()
