"""Label smoothing."""

from __future__ import annotations

from dataclasses import dataclass

from ...validation import number
from .comparator import Comparator


@dataclass(frozen=True)
class LabelSmoothing(Comparator):
    """Label smoothing: the share `epsilon` of the target is spread evenly over all classes."""

    epsilon: float = 0.1
    name = "labelsmoothing"
    grid = {"epsilon": [0.05, 0.1, 0.2]}

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, 0.0, 1.0)

    @property
    def label_smoothing(self) -> float:
        """The share of the target that is spread."""
        return self.epsilon
