"""Stochastic depth."""

from __future__ import annotations

from dataclasses import dataclass

from .comparator import Dropping


@dataclass(frozen=True)
class DropPath(Dropping):
    """Stochastic depth, done by the model: residual branches are skipped, later layers more often."""

    name = "droppath"

    def model_rates(self) -> dict[str, float]:
        """The rate of the last layer."""
        return {"drop_path": self.p}
