"""Bounds on the risk of the deterministic model, from the disagreement between views.

f_w is the model under a draw w, f is the model without perturbation, R(.) is the risk.

1. `1[f wrong] <= 1[f_w wrong] + 1[f_w differs from f]`, so R(f) <= R(f_w) + P[f_w differs from f].
2. Let v(x) be the class most often predicted over draws, with probability p. Two independent draws agree with
   probability sum_c p_c^2 <= p, so P[f_w differs from v] = 1 - p <= P[f_w differs from f_w'], and by 1 for v:
   R(v) <= R(f_w) + P[f_w differs from f_w'].
3. The loss 1 - softmax(Z)_y is the risk of a predictor that draws its answer from its softmax. Changing the softmax
   from p to q changes this loss by at most their total variation, which by Pinsker is at most sqrt(KL(p || q) / 2). So
   R(f) <= R(f_w) + E min(1, sqrt(KL(softmax f || softmax f_w) / 2)).

Only R(f_w) needs labels. Each right-hand side is the sum of the means of two [0, 1] variables, bounded with delta / 2
each. If there are labels, a direct bound on f is tighter.
"""

from __future__ import annotations

import numpy as np

from .certificate import IID, OWN_DRAWS, PSEUDO_RANDOM, UNIT_LOSS, Certificate, mean_bound
from .rounding import next_above

_SUM = "kl inverse for the risk and for the {what}, delta / 2 each, added"


def through_disagreement(losses: np.ndarray, apart: np.ndarray, draws: int, delta: float) -> Certificate:
    """Statement 1. Both [n], means over draws: the 0-1 loss of f_w, and whether f_w and f differ."""
    return _sum(
        "deterministic, through disagreement", "the model in eval(), 0-1 loss",
        losses, apart, draws, delta, "disagreement with the randomised predictor",
    )  # fmt: skip


def through_views(losses: np.ndarray, pairs: np.ndarray, draws: int, delta: float) -> Certificate:
    """Statement 2. Both [n]: the 0-1 loss of f_w, and the share of pairs of draws that differ."""
    return _sum(
        "majority vote, through views", "the vote over infinitely many draws, 0-1 loss",
        losses, pairs, draws, delta, "disagreement between two views",
    )  # fmt: skip


def through_kl(losses: np.ndarray, distances: np.ndarray, draws: int, delta: float) -> Certificate:
    """Statement 3. Both [n], means over draws: 1 - softmax(f_w)_y, and min(1, sqrt(KL / 2))."""
    return _sum(
        "softmax, through the consistency KL", "the model in eval() that draws its answer from its softmax",
        losses, distances, draws, delta, "distance sqrt(KL / 2)",
    )  # fmt: skip


def _sum(
    name: str, predictor: str, losses: np.ndarray, extra: np.ndarray, draws: int, delta: float, what: str
) -> Certificate:
    value = min(1.0, next_above(mean_bound(losses, delta / 2) + mean_bound(extra, delta / 2)))
    estimate = min(1.0, float(losses.mean() + extra.mean()))
    assumptions = (IID, OWN_DRAWS, UNIT_LOSS, PSEUDO_RANDOM)
    return Certificate(name, predictor, value, estimate, len(losses), draws, delta, _SUM.format(what=what), assumptions)
