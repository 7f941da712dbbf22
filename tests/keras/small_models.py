"""A small classifier over sequences, its data, and how it is compiled: what most Keras tests train."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

X = np.random.default_rng(0).normal(size=(32, 8, 12)).astype("float32")
Y = (np.arange(32) % 3).astype("int32")

#: What the compiler of each backend can do: torch has none in Keras's `fit`.
JIT = keras.backend.backend() != "torch"


def classifier(layer: Any = keras.layers.MultiHeadAttention, causal: bool = False, **options: Any) -> Any:
    """Two attention layers, named "first" and "second"."""
    x = keras.Input((8, 12))
    h = x
    for name in ("first", "second"):
        h = keras.layers.Add()([h, layer(2, 6, name=name, **options)(h, h, use_causal_mask=causal)])
    return keras.Model(x, keras.layers.Dense(3, name="classes")(keras.layers.GlobalAveragePooling1D()(h)))


#: How a short `fit` takes the least time: without a graph, except on JAX, which would compile operation by operation.
QUICKEST: dict[str, bool] = {"jit_compile": True} if keras.backend.backend() == "jax" else {"run_eagerly": True}


def compiled(model: Any, **options: Any) -> Any:
    """For `fit`, without a graph or a compiler, which take seconds, unless the options say so."""
    options = options or QUICKEST
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


def fit(model: Any, epochs: int = 1, **options: Any) -> Any:
    return model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0, shuffle=False, **options)


def outputs(model: Any, training: bool = False, x: Any = X) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.stop_gradient(model(x, training=training))))


def state(generator: Any) -> list[int]:
    return [int(word) for word in keras.ops.convert_to_numpy(generator.state)]
