"""A process has one Keras backend, so its tests and doctests run apart: `KERAS_BACKEND=jax pytest tests/keras`."""

import os

collect_ignore = [] if os.environ.get("KERAS_BACKEND") else ["tests/keras", "src/attentiondrop/keras"]
