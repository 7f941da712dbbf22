"""The examples, run briefly as a user runs them: in a process of their own, on the backend at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from keras_parity import BACKEND

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "KERAS_BACKEND": BACKEND},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_vit_on_digits() -> None:
    output = run("keras_digits_vit.py", "--epochs", "1")
    assert "attention_*  2 x MultiHeadAttention  hard(p=0.0,k=5)+consistency(weight=0.5)" in output
    assert output.splitlines()[-1].startswith(f"{BACKEND}: accuracy 0.")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="pure TensorFlow")
def test_the_loop_of_tensorflow() -> None:
    lines = run("tensorflow_loop.py", "--steps", "60").splitlines()
    first, last = (float(line.split("task ")[1].split(",")[0]) for line in (lines[0], lines[-1]))
    assert last < first
