"""Time a Keras training step with each regulariser, compared with the stock layer: TensorFlow and JAX on a CPU, jit.

    python benchmarks/keras_step.py

Each backend runs in its own process. Before the timing, every row is compiled and checked against the NumPy oracle,
with the same draws. Then the rows take turns within each repeat, and ratios are taken within a repeat.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles, ratios

BACKENDS = ("tensorflow", "jax")
BATCH, LENGTH, WIDTH, HEADS, DEPTH = 16, 128, 192, 3, 2
STOCK = "stock layer"
SPECS = [
    "blur(sigma_max=0.5)",
    "hard(p=0.1,k=5)",
    "hard(p=0.1,k=5,fill=-inf)",
    "noise(sigma=0.1)",
    "dropkey(p=0.1)",
    "attndropout(p=0.1)",
    "drophead(p=0.1)",
]
FIELDS = ["backend", "row", "ms", "ms_20", "ms_80", "ratio", "ratio_20", "ratio_80", "error"]
#: The relative error (Frobenius norm) that float32 attention over rows of this length may have.
ALLOWED = 1e-5


def error_against_the_oracle(spec: ad.Spec) -> float:
    """The relative error of a compiled call at the shape of the model, for the draws that it makes."""
    import keras

    from attentiondrop.keras import attention
    from attentiondrop.keras.call.leaves import LogitShape, leaves_of

    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, LENGTH, HEADS, WIDTH // HEADS)).astype("float32")
    (leaf,) = leaves_of(spec, LogitShape(2, HEADS, LENGTH, LENGTH), seed=7)

    def call(*inputs: Any) -> Any:
        return attention(*inputs, spec, seed=7)

    output = np.asarray(keras.ops.convert_to_numpy(compiled(call)(q, k, v)))
    draws = np.asarray(keras.ops.convert_to_numpy(leaf.draw), dtype=np.float64)
    want = reference.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), spec, draws).output.swapaxes(1, 2)
    return float(np.linalg.norm(output - want) / np.linalg.norm(want))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled by XLA, as with `jit_compile=True`."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def model(text: str | None, dropout: float) -> Any:
    """Pre-norm blocks over a sequence, compiled for training."""
    import keras

    from attentiondrop.keras import attach

    inputs = keras.Input((LENGTH, WIDTH))
    h = inputs
    for _ in range(DEPTH):
        x = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=dropout)(x, x)
        x = keras.layers.Dense(4 * WIDTH, activation="gelu")(keras.layers.LayerNormalization()(h))
        h = h + keras.layers.Dense(WIDTH)(x)
    built = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(h)))
    if text is not None:
        attach(built, text)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(keras.optimizers.SGD(0.01), loss, jit_compile=True)
    return built


def measure(repeats: int, steps: int) -> list[dict[str, Any]]:
    """Time all rows on the backend of this process."""
    import keras

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32"), rng.integers(0, 10, BATCH)
    x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y, dtype="int32")
    errors: dict[str, float] = {text: error_against_the_oracle(ad.parse(text)) for text in SPECS}
    for text, error in errors.items():
        if not error <= ALLOWED:
            raise SystemExit(f"{text}: a relative error of {error:.1e} against the oracle; nothing was timed")
    models = {STOCK: model(None, 0.0), "stock layer, dropout=0.1": model(None, 0.1)}
    models |= {text: model(text, 0.0) for text in SPECS}
    for built in models.values():
        built.train_on_batch(x, y), built.train_on_batch(x, y)
    samples: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats):
        for name, built in models.items():
            start = time.perf_counter()
            for _ in range(steps):
                built.train_on_batch(x, y)
            samples[name].append((time.perf_counter() - start) / steps)
    rows = []
    for name, taken in samples.items():
        each, over = Quantiles.of([1000 * value for value in taken]), ratios(taken, samples[STOCK])
        numbers = (each.middle, each.low, each.high, over.middle, over.low, over.high)
        values = [keras.backend.backend(), name, *(f"{number:.3f}" for number in numbers)]
        rows.append(dict(zip(FIELDS, [*values, f"{errors[name]:.1e}" if name in errors else ""], strict=True)))
    return rows


def report(rows: list[dict[str, Any]], facts: list[str]) -> str:
    """A Markdown page: the environment, then a table of ratios."""
    lines = ["# A training step in Keras", "", *(f"- {fact}" for fact in facts), ""]
    lines += ["Milliseconds hold on that machine only; the ratio to the stock layer is the figure.", ""]
    lines += [
        "| backend | row | step ms | 20 - 80 % | / stock | 20 - 80 % | error |",
        "| --- | --- " + "| ---: " * 5 + "|",
    ]
    for row in rows:
        times = f"{float(row['ms']):.1f} | {float(row['ms_20']):.1f} - {float(row['ms_80']):.1f}"
        over = f"{float(row['ratio']):.2f} | {float(row['ratio_20']):.2f} - {float(row['ratio_80']):.2f}"
        lines.append(f"| {row['backend']} | {row['row']} | {times} | {over} | {row['error']} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run both backends and write CSV and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="steps in each repeat")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.repeats, options.steps)))
        return
    rows: list[dict[str, Any]] = []
    for backend in BACKENDS:
        command = [sys.executable, __file__, "--one", backend]
        command += ["--repeats", str(options.repeats), "--steps", str(options.steps)]
        done = subprocess.run(
            command, env={**os.environ, "KERAS_BACKEND": backend}, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{backend}: stopped with {done.returncode}")
        rows += json.loads(done.stdout.splitlines()[-1])
    here = environment("cpu")
    versions = {name: importlib.metadata.version(name) for name in ("keras", "tensorflow", "jax")}
    facts = [
        f"device: {here.device}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + f", Python {here.python}",
        f"commit {here.commit}, {here.date}",
        f"model: {DEPTH} blocks, width {WIDTH}, {HEADS} heads, {LENGTH} positions, batch {BATCH}, float32, "
        "`train_on_batch` with `jit_compile=True`",
        f"{options.repeats} repeats of {options.steps} steps; rows take turns within a repeat",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"keras-step-cpu-keras{'.'.join(versions['keras'].split('.')[:2])}"
    with target.with_suffix(target.suffix + ".csv").open("w", newline="", encoding="utf-8") as file:
        extra = {**dataclasses.asdict(here), **versions}
        writer = csv.DictWriter(file, [*FIELDS, *extra])
        writer.writeheader()
        writer.writerows({**row, **extra} for row in rows)
    text = report(rows, facts)
    target.with_suffix(target.suffix + ".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
