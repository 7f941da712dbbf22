"""Put a model into eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode, and restore its mode at the end."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
