"""Rematerialisation (`keras.RematScope`) computes a layer again in the backward: with the same draws."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_parity import BACKEND
from small_models import compiled, fit, state

import attentiondrop as ad
import attentiondrop.keras as ak

pytestmark = pytest.mark.skipif(BACKEND == "jax", reason="Keras cannot rematerialise this layer on JAX")


def trained(kind: str, names: list[str]) -> tuple[list[np.ndarray], int]:
    """The weights after a training in which the layers called `names` are computed again, and how many seeds were drawn."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 12))
    with keras.RematScope(mode="list_of_layers", layer_names=names):
        if kind == "own":
            layer: Any = ak.MultiHeadAttention(2, 6, attention_drop="dropkey(p=0.5)", name="attention")
            h = layer(x, x)
        elif kind == "attached":
            layer = keras.layers.MultiHeadAttention(2, 6, name="attention")
            h = layer(x, x)
        else:
            layer = ak.AttentionDrop("dropkey(p=0.5)", name="attention")
            h = layer(keras.layers.Reshape((2, 8, 6))(keras.layers.Dense(12)(x)))
            h = keras.layers.Reshape((8, 12))(h)
    model = keras.Model(x, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(h)))
    if kind == "attached":
        ak.attach(model, "dropkey(p=0.5)")
    generator = layer._attentiondrop_site.generator
    before = state(generator)[1]
    compiled(model, run_eagerly=True)
    fit(model)
    return model.get_weights(), state(generator)[1] - before


@pytest.mark.parametrize("kind", ["own", "attached", "logits"])
def test_the_backward_draws_as_the_forward(kind: str) -> None:
    plain, calls = trained(kind, [])
    again, repeated = trained(kind, ["attention"])
    assert calls == repeated == 2
    assert all(np.array_equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.skipif(BACKEND != "torch", reason="only torch tells that a backward runs")
def test_a_layer_around_it_is_refused() -> None:
    attention = ak.MultiHeadAttention(2, 6, attention_drop="dropkey(p=0.5)")
    x = keras.random.normal((2, 8, 12))
    attention(x, x)
    with pytest.raises(ad.AttachError, match="received a call that the backward computes again, with other draws"):
        keras.remat(lambda x: attention(x, x, training=True))(x).sum().backward()
