"""A certificate: an upper bound on one risk, with all its assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ShapeError, bad_argument
from .binary_kl import kl_inverse
from .binomial import open_unit
from .rounding import fixed_above

IID = (
    "the examples are an i.i.d. sample of the distribution whose risk is meant, independent of the predictor: never "
    "used to train it, to tune it, to pick an epoch or to choose it among others"
)
OWN_DRAWS = "every example and draw has perturbations of its own, independent of the data and of each other"
COMMON_DRAWS = "a draw is the same for all examples; draws are independent of the data and of each other"
UNIT_LOSS = "the loss lies in [0, 1] (checked)"
PSEUDO_RANDOM = "pseudo-random numbers count as random"


@dataclass(frozen=True)
class Certificate:
    """With probability at least 1 - delta, the risk of `predictor` is at most `value`; `estimate` was measured."""

    name: str
    predictor: str
    value: float
    estimate: float
    n: int
    draws: int
    delta: float
    #: The inequality that was used.
    how: str
    assumptions: tuple[str, ...]

    @property
    def vacuous(self) -> bool:
        """Whether the bound is 1 or more, which says nothing: every loss in [0, 1] has a risk of at most 1."""
        return not self.value < 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"vacuous": self.vacuous, "assumptions": list(self.assumptions)}

    def __str__(self) -> str:
        bound = "vacuous" if self.vacuous else fixed_above(self.value, 4)
        return f"{self.name}: risk <= {bound} with probability {1 - self.delta:.12g}; measured {self.estimate:.4f}"


def mean_bound(values: np.ndarray, delta: float) -> float:
    """An upper bound on the mean of independent variables in [0, 1], from their observed `values`.

    Chernoff's bound: P[kl(observed || true) > ln(1/delta) / n and observed < true] <= delta. It holds for all values in
    [0, 1], not only 0 and 1. The variables may have different distributions; `true` is the average of their means.
    """
    return kl_inverse(min(float(values.mean()), 1.0), -math.log(delta) / len(values))


def certificate_from_losses(losses: Any, delta: float = 0.05, *, shared_draws: bool = False) -> Certificate:
    """Certify the risk of a randomised predictor from its losses on held-out examples.

    The bound includes the error that comes from using finitely many draws.

    Args:
        losses: [draws, n], in [0, 1]: at least two draws; each column belongs to one example.
        delta: with probability at most delta the certificate is wrong.
        shared_draws: False: every entry has its own draw. The column means are then i.i.d. with the risk as their mean,
            for any number of draws, and Chernoff's bound over n is enough. True: a row uses one draw (one sampled
            model) for all examples. Then two bounds follow each other, with delta / 2 each: over n for the mixture of
            the drawn models, then over the draws for the whole distribution. This needs many draws.

    Example:
        >>> losses = np.zeros((2, 100))
        >>> losses[:, :5] = 1.0
        >>> print(certificate_from_losses(losses))
        held-out: risk <= 0.1216 with probability 0.95; measured 0.0500
    """
    table = checked_losses(losses)
    delta = open_unit("delta", delta)
    draws, n = table.shape
    estimate = float(table.mean())
    if not shared_draws:
        value, how, draw = mean_bound(table.mean(axis=0), delta), "kl inverse over the examples", OWN_DRAWS
    else:
        mixture = mean_bound(table.mean(axis=0), delta / 2)
        value = kl_inverse(mixture, -math.log(delta / 2) / draws)
        how, draw = "kl inverse over the examples, then over the draws, delta / 2 each", COMMON_DRAWS
    assumptions = (IID, draw, UNIT_LOSS, PSEUDO_RANDOM)
    return Certificate("held-out", "the randomised predictor", value, estimate, n, draws, delta, how, assumptions)


def checked_losses(losses: Any) -> np.ndarray:
    """[draws, n] in float64, or an error."""
    table = np.asarray(losses, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 1:
        raise ShapeError(f"losses: expected [draws, examples], received {list(table.shape)}")
    if table.shape[0] < 2:
        raise bad_argument("draws", "a number >= 2", table.shape[0])
    check_unit_interval(table)
    return table


def check_unit_interval(losses: np.ndarray) -> None:
    """Refuse losses outside [0, 1], which no bound here covers."""
    # NaN compares as False, so it is refused too.
    if not bool(((losses >= 0.0) & (losses <= 1.0)).all()):
        raise bad_argument(
            "loss", "values in [0, 1], which every bound here needs", f"{losses.min()} to {losses.max()}"
        )


def checked_suspects(suspects: Any, n: int) -> np.ndarray:
    """Which of n held-out examples may have been seen in training: [n], all False by default; or an error."""
    found = np.zeros(n, dtype=bool) if suspects is None else np.asarray(suspects, dtype=bool)
    if found.shape != (n,):
        raise ShapeError(f"suspects: expected [{n}], one entry per example, received {list(found.shape)}")
    return found
