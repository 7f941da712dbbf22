"""Dropout of activations."""

from __future__ import annotations

from dataclasses import dataclass

from .comparator import Dropping


@dataclass(frozen=True)
class Dropout(Dropping):
    """Dropout of activations, by the model's own rates."""

    name = "dropout"

    def model_rates(self) -> dict[str, float]:
        """The rate of every dropout of activations that the model has."""
        return {"dropout": self.p}
