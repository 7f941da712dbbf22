"""A small ViT on scikit-learn's digits with AttentionDrop: Keras 3, `fit`, any backend.

    KERAS_BACKEND=tensorflow python examples/keras_digits_vit.py
    KERAS_BACKEND=jax python examples/keras_digits_vit.py

The code is the same for every backend. A `consistency(...)` in the spec adds that loss. The rate of hard masking grows
from 0 over the first half of the training.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

from attentiondrop.keras import ConsistencyModel, ScheduleCallback, attach


class Positions(keras.layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:  # noqa: D102
        self.table = self.add_weight(shape=shape[1:], initializer="truncated_normal")

    def call(self, x: object) -> object:  # noqa: D102
        return x + self.table


def vit(width: int = 48, heads: int = 4) -> keras.Model:
    """A plain Keras ViT without AttentionDrop: 16 patches of 2 x 2 pixels, two blocks, mean over the patches."""
    images = keras.Input((8, 8, 1))
    h = Positions()(keras.layers.Reshape((16, width))(keras.layers.Conv2D(width, 2, strides=2)(images)))
    for block in range(2):
        x = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention_{block}")(x, x)
        x = keras.layers.Dense(2 * width, activation="gelu")(keras.layers.LayerNormalization()(h))
        h = h + keras.layers.Dense(width)(x)
    h = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(h))
    return keras.Model(images, keras.layers.Dense(10)(h), name="vit")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--spec", default="hard(p=warmup(0.1,share=0.5),k=5)+consistency(weight=0.5)")
options = parser.parse_args()
keras.utils.set_random_seed(0)
digits = load_digits()
images, labels = (digits.images[..., None] / 16).astype("float32"), digits.target.astype("int32")
plain = vit()
attachment = attach(plain, options.spec)
print(attachment)
model = plain if attachment.consistency is None else ConsistencyModel(plain, attachment.consistency)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adamw", loss, jit_compile=keras.backend.backend() != "torch")
schedule = ScheduleCallback()  # sets rates that change during training
model.fit(images[:1200], labels[:1200], batch_size=64, epochs=options.epochs, verbose=0, callbacks=[schedule])
accuracy = (np.argmax(plain.predict(images[1200:], verbose=0), axis=-1) == labels[1200:]).mean()
print(f"{keras.backend.backend()}: accuracy {accuracy:.3f} after {options.epochs} epochs")
