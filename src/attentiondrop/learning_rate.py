"""How the learning rate changes during training: the curve that experiments and certificates both use."""

from __future__ import annotations

import math


def warmup_then_cosine(step: int, steps: int, warmup: float) -> float:
    """The factor on the learning rate: a linear rise over the share `warmup` of the steps, then half a cosine.

    >>> [round(warmup_then_cosine(step, 10, 0.2), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def warmup_then_inverse_sqrt(step: int, steps: int, warmup: float) -> float:
    """The factor on the learning rate: a linear rise over the share `warmup` of the steps, then 1 / sqrt(step).

    >>> [round(warmup_then_inverse_sqrt(step, 10, 0.2), 2) for step in range(10)]
    [0.5, 1.0, 0.82, 0.71, 0.63, 0.58, 0.53, 0.5, 0.47, 0.45]
    """
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else math.sqrt(rise / (step + 1))
