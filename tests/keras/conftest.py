"""Set-up of the Keras tests: torch before TensorFlow, seeds through Keras."""

from __future__ import annotations

import pytest

# TensorFlow after torch: the other way round, their OpenMP and protobuf libraries have been seen to clash.
import torch  # noqa: F401  isort: skip
import keras  # isort: skip


@pytest.fixture(autouse=True)
def seeded() -> None:
    keras.utils.set_random_seed(0)
