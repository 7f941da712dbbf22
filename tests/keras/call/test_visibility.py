"""Masks, biases and what they hide, in training and in evaluation."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_parity import Case, relative_error, to_numpy

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop import reference


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


def test_a_boolean_bias_hides_keys_next_to_an_additive_mask() -> None:
    (q, k, v), _, _ = Case("cross", rows=5, columns=11).make()
    q, k, v = (keras.ops.convert_to_tensor(x, dtype="float32") for x in (q, k, v))
    visible = np.arange(11)[None, None, None] < 6
    want = to_numpy(keras.ops.dot_product_attention(q, k, v, mask=visible))
    for training in (True, False):
        options = {"bias": visible, "mask": np.zeros((5, 11), "float32"), "training": training, "seed": 0}
        assert relative_error(to_numpy(ak.attention(q, k, v, ad.DropKey(0.0), **options)), want) < 1e-6


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
