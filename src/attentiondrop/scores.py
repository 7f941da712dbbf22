"""What evaluation finds, as plain data: `attentiondrop.evaluation` makes it, run folders keep it."""

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
    """Confidence against accuracy, one entry a bin. The bins divide [0, 1] equally; those without samples have None."""

    confidence: list[float | None]
    accuracy: list[float | None]
    count: list[int]

    @property
    def edges(self) -> list[float]:
        """Where the bins begin and end, one more than there are bins; a bin holds its lower edge, the last both."""
        bins = len(self.count)
        return [index / bins for index in range(bins + 1)]


@dataclass(frozen=True)
class RobustnessReport:
    """Accuracy under attack: one entry an epsilon, in increasing order; the first epsilon is 0, no attack.

    An attack that fails says nothing about a model unless it is known to work. `sound` says whether it passed the
    checks of `robust_accuracy`; `notes` say which it did not pass, and then the accuracies are likely too high.
    """

    norm: str
    epsilons: list[float]
    accuracy: list[float]
    steps: int
    restarts: int
    examples: int
    sound: bool
    notes: list[str] = field(default_factory=list)
