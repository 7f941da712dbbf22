"""TensorFlow without Keras layers around the attention: a `tf.function(jit_compile=True)` training loop.

    KERAS_BACKEND=tensorflow python examples/tensorflow_loop.py

The functions of `attentiondrop.keras` work on tf tensors, like the paper's listings. Seeds are given as for
TensorFlow's own stateless functions, and rates are tensors, so a new seed or rate compiles nothing again.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf
from sklearn.datasets import load_digits

import attentiondrop as ad
from attentiondrop.keras import attention_weights, divergence

WIDTH, HEADS, SPEC = 48, 4, ad.HardMasking(p=0.1, k=5)


def forward(w: dict, images: tf.Tensor, seed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
    """Logits of the classes; `seed` has two integers, `rate` is the probability of hard masking."""
    h = images[..., None] @ w["pixel"] + w["position"]
    parts = (tf.reshape(part, (-1, 64, HEADS, WIDTH // HEADS)) for part in tf.split(h @ w["qkv"], 3, axis=-1))
    q, k, v = (tf.transpose(part, (0, 2, 1, 3)) for part in parts)
    logits = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5
    mixed = tf.transpose(attention_weights(logits, SPEC, seed=seed, rates=[rate]) @ v, (0, 2, 1, 3))
    return tf.reduce_mean(tf.nn.gelu(h + tf.reshape(mixed, (-1, 64, WIDTH)) @ w["out"]), axis=1) @ w["classes"]


@tf.function(jit_compile=True)
def step(w: dict, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """One step of the paper's third variant: two perturbed passes that should agree."""
    with tf.GradientTape() as tape:
        views = [forward(w, images, seed + tf.constant([0, 2**20 * view]), rate) for view in range(2)]
        task = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, views[0]))
        loss = task + 0.5 * divergence(views)
    for variable, gradient in zip(w.values(), tape.gradient(loss, list(w.values())), strict=True):
        variable.assign_sub(0.3 * gradient)
    return task, divergence(views)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
images, labels = load_digits(return_X_y=True)
data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels.astype("int32")))
batches = data.shuffle(2000, seed=0).repeat().batch(64).take(options.steps)
names = ("pixel", "position", "qkv", "out", "classes")  # one attention block over the 64 pixels of a digit
shapes = ((1, WIDTH), (64, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 10))
drawn = [tf.random.stateless_normal(shape, [0, number]) for number, shape in enumerate(shapes)]
w = {name: tf.Variable(x * x.shape[0] ** -0.5) for name, x in zip(names, drawn, strict=True)}
for number, (x, y) in enumerate(batches):
    rate = tf.constant(SPEC.p * min(1.0, 2 * number / options.steps))
    task, apart = step(w, x, y, tf.constant([1, number]), rate)
    if number % 50 == 0 or number == options.steps - 1:
        print(f"step {number}: task {float(task):.3f}, divergence {float(apart):.4f}")
