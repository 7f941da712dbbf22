"""Results of an evaluation, as plain data: `attentiondrop.evaluation` returns them, and run folders store them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scores:
    """How good predictions are: shares in [0, 1], `nll` in nats. `top5` is None with five classes or fewer."""

    accuracy: float
    nll: float
    ece: float
    brier: float
    top5: float | None = None


@dataclass(frozen=True)
class ReliabilityDiagram:
    """Mean confidence and accuracy in each of several equal bins of [0, 1]; None in bins without samples."""

    confidence: list[float | None]
    accuracy: list[float | None]
    count: list[int]

    @property
    def edges(self) -> list[float]:
        """Where the bins begin and end: one more than there are bins. A bin holds its lower edge, the last one both."""
        bins = len(self.count)
        return [index / bins for index in range(bins + 1)]


@dataclass(frozen=True)
class RobustnessReport:
    """Accuracy under attack for each epsilon, in increasing order; the first epsilon is 0, which means no attack.

    If an attack does not work at all, the accuracy under attack says nothing about the model. `sound` says whether the
    attack passed the checks of `robust_accuracy`. `notes` name the failed checks; the accuracies are then likely too
    high.
    """

    norm: str
    epsilons: list[float]
    accuracy: list[float]
    steps: int
    restarts: int
    examples: int
    sound: bool
    notes: list[str] = field(default_factory=list)
