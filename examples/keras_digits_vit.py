"""A small ViT on scikit-learn's digits with AttentionDrop: Keras 3, `fit`, any backend.

    KERAS_BACKEND=tensorflow python examples/keras_digits_vit.py
    KERAS_BACKEND=jax python examples/keras_digits_vit.py

The code is the same for every backend. `--spec` takes the text of a spec; a `consistency(...)` in it adds that loss.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import attentiondrop as ad
from attentiondrop.keras import ConsistencyModel, ScheduleCallback, attach


class Positions(keras.layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """One vector for each position."""
        self.table = self.add_weight(shape=shape[1:], initializer="truncated_normal")

    def call(self, x: object) -> object:
        """The sum."""
        return x + self.table


def vit(depth: int = 2, width: int = 48, heads: int = 4) -> keras.Model:
    """A plain Keras ViT without AttentionDrop: 16 patches of 2 x 2 pixels, pre-norm blocks, mean over the patches."""
    images = keras.Input((8, 8, 1))
    h = keras.layers.Conv2D(width, 2, strides=2)(images)
    h = keras.layers.Reshape((16, width))(h)
    h = Positions()(h)
    for block in range(depth):
        x = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention_{block}")(x, x)
        x = keras.layers.LayerNormalization()(h)
        x = keras.layers.Dense(2 * width, activation="gelu")(x)
        h = h + keras.layers.Dense(width)(x)
    h = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(h))
    return keras.Model(images, keras.layers.Dense(10)(h), name="vit")


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--spec", default="hard(p=0.1,k=5)+consistency(weight=0.5)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    keras.utils.set_random_seed(options.seed)
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    x, x_test, y, y_test = train_test_split(
        images, digits.target.astype("int32"), test_size=0.3, random_state=0, stratify=digits.target
    )

    plain = vit()
    attachment = attach(plain, ad.parse(options.spec))
    print(attachment)
    consistency = attachment.consistency
    model = plain if consistency is None else ConsistencyModel(plain, consistency)
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    callbacks = []
    if "hard" in options.spec:
        # From 0 to the full rate over the first half of the training.
        rate = next(leaf.p for leaf in ad.parse(options.spec).leaves() if isinstance(leaf, ad.HardMasking))
        callbacks.append(ScheduleCallback({"hard.p": lambda progress: rate * min(1.0, 2 * progress)}))
    model.fit(x, y, batch_size=64, epochs=options.epochs, verbose=0, callbacks=callbacks)

    predictions = np.argmax(plain.predict(x_test, verbose=0), axis=-1)
    accuracy = (predictions == y_test).mean()
    print(f"{keras.backend.backend()}: accuracy {accuracy:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
