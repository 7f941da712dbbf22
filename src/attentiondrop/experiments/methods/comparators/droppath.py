"""Stochastic depth."""

from __future__ import annotations

from dataclasses import dataclass

from ..comparator import Dropping


@dataclass(frozen=True)
class DropPath(Dropping):
    """Stochastic depth, done by the model: residual branches are skipped, later layers more often."""

    name = "droppath"
    group = "hidden"
    perturbs = "residual branches, for each sample"
    formula = "x + f(x) * Bernoulli(1 - p_l) / (1 - p_l), p_l = p * l / (L - 1) in layer l of L"
    reference = "Huang et al. 2016, Deep Networks with Stochastic Depth"

    def model_rates(self) -> dict[str, float]:
        """The rate of the last layer."""
        return {"drop_path": self.p}
