"""Label smoothing."""

from __future__ import annotations

from dataclasses import dataclass

from ....validation import number
from ..comparator import Comparator


@dataclass(frozen=True)
class LabelSmoothing(Comparator):
    """Label smoothing: the share `epsilon` of the target is spread evenly over all classes."""

    epsilon: float = 0.1
    name = "labelsmoothing"
    group = "loss"
    grid = [{"epsilon": epsilon} for epsilon in (0.1, 0.02, 0.05, 0.2, 0.3, 0.4)]
    perturbs = "targets"
    formula = "(1 - epsilon) * target + epsilon / classes"
    reference = "Szegedy et al. 2016, Rethinking the Inception Architecture"

    def _check(self) -> None:
        number("epsilon", self.epsilon, 0.0, 1.0)

    @property
    def label_smoothing(self) -> float:
        """The share of the target that is spread."""
        return self.epsilon
