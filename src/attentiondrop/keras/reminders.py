"""What people forget in training: the loss of a consistency part. A site warns once if nobody computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import warn_once
from ..specs import Spec

_is_computed: ContextVar[bool] = ContextVar("is_computed", default=False)


@contextmanager
def computing_loss() -> Iterator[None]:
    """Within, calls in training are views of a consistency loss."""
    token = _is_computed.set(True)
    try:
        yield
    finally:
        _is_computed.reset(token)


class Awaited:
    """Waits for the consistency loss of one spec."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._waits = spec.consistency is not None

    def note_call(self) -> None:
        """Called in every call in training. (A rematerialised call may come after the loss: so one loss is enough.)"""
        if _is_computed.get():
            self._waits = False
        elif self._waits:
            warn_once(
                "forgotten consistency in Keras",
                f"the attached spec {self._spec} has a consistency part, which acts only in a loss: train "
                "attentiondrop.keras.ConsistencyModel(model), or use attentiondrop.keras.consistency_loss. This call "
                "in training was without it",
                "keras",
                "tensorflow",
                "jax",
            )
