"""Which logits hard masking and DropKey select, and what gradient the dropped ones have."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_parity import to_numpy, value_and_gradients

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop import reference
from attentiondrop.keras.call.regularisers import top_k


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
