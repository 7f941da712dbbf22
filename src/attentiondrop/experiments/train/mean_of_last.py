"""The mean of the weights after each of the last epochs, as fairseq averages its last checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class MeanOfLast:
    """The mean over the last `count` of `epochs` epochs, on the CPU. It does nothing if `count` is 1."""

    def __init__(self, count: int, epochs: int) -> None:
        self._first = epochs if count == 1 else max(0, epochs - count)
        self._added = 0
        #: The mean so far; empty before the first of these epochs.
        self.weights: dict[str, Tensor] = {}

    def wants(self, done: int) -> bool:
        """Whether the weights after `done` epochs are a part of the mean."""
        return done > self._first

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights into the mean. Numbers that are not floating point, such as counters, are those of the last."""
        self._added += 1
        for name, tensor in weights.items():
            new = tensor.detach().to("cpu", copy=True)
            if new.is_floating_point() and name in self.weights:
                self.weights[name] += (new - self.weights[name]) / self._added
            else:
                self.weights[name] = new

    def state_dict(self) -> dict[str, Any] | None:
        """What a resumed run needs; None before the first of these epochs."""
        return {"added": self._added, "weights": self.weights} if self._added else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore what `state_dict` returned."""
        if state is not None:
            self._added, self.weights = state["added"], dict(state["weights"])
