"""Dropout of activations."""

from __future__ import annotations

from dataclasses import dataclass

from ..comparator import Dropping


@dataclass(frozen=True)
class Dropout(Dropping):
    """Dropout of activations, done by the dropout layers of the model."""

    name = "dropout"
    group = "hidden"
    perturbs = "activations"
    formula = "x * Bernoulli(1 - p) / (1 - p), for each element"
    reference = "Srivastava et al. 2014, Dropout"

    def model_rates(self) -> dict[str, float]:
        """The rate of the dropout in the body of the model, except that of attention weights."""
        return {"dropout": self.p}
