"""Set-up of the Keras tests: torch before TensorFlow, quick compilation, seeds through Keras."""

from __future__ import annotations

import os

import pytest

# Tests compile hundreds of tiny programs and run each of them once.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# TensorFlow after torch: the other way round, their libraries have been seen to clash.
import torch  # noqa: F401  isort: skip
import keras


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires_trainable_backend: of Keras's own tests, which we run on our layers")


@pytest.fixture(autouse=True)
def seeded() -> None:
    keras.utils.set_random_seed(0)
