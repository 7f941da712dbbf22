"""The examples, run briefly on the backend at hand."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from keras_parity import BACKEND
from small_models import QUICKEST

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Runs an example: what it has defined, and what it has printed.
Run = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return names, capsys.readouterr().out

    return run


@pytest.mark.parametrize("shortened", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_vit_on_digits(shortened: bool, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if shortened:  # three steps, and without the compiler, which takes most of the time
        fit, compile_ = keras.Model.fit, keras.Model.compile
        monkeypatch.setattr(keras.Model, "fit", lambda model, x, y, **more: fit(model, x[:192], y[:192], **more))
        monkeypatch.setattr(
            keras.Model, "compile", lambda model, *args, jit_compile: compile_(model, *args, **QUICKEST)
        )
    _, output = run("keras_digits_vit.py", "--epochs", "1")
    assert "attention_*  2 x MultiHeadAttention  hard(p=0.0,k=5)+consistency(weight=0.5)" in output
    assert output.splitlines()[-1].startswith(f"{BACKEND}: accuracy 0.")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="pure TensorFlow")
def test_the_loop_of_tensorflow(run: Run) -> None:
    import tensorflow as tf

    example, output = run("tensorflow_loop.py", "--steps", "10")
    assert re.findall(r"^step (\d+): task \d\.\d+, divergence \d\.\d+$", output, flags=re.MULTILINE) == ["0", "9"]
    # Batches differ by more than ten steps gain: the loss of the same digits has to fall.
    images, labels = (example["images"][:256] / 16).astype("float32"), example["labels"][:256]
    start = {name: x * x.shape[0] ** -0.5 for name, x in zip(example["names"], example["drawn"], strict=True)}
    losses = []
    for weights in (start, example["w"]):
        logits = example["forward"](weights, images, tf.constant([0, 0]), tf.constant(0.0))
        losses.append(float(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))))
    assert losses[1] < losses[0] - 0.01
