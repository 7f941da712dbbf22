"""Second moments of paired gradients, and unbiased variances from them.

There are K units (examples or mini-batches). Unit k has one gradient a_k without perturbation and D gradients c_kj with
it, one for each draw. The differences are d_kj = c_kj - a_k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, AttentionDropError
from .gradients import ByLayer, Chunk, PairedGradients

TOTAL = "total"
#: What each unit contributes. The first three are squared distances to the mean over units, the fourth is the product
#: for g_base and dg. The last two are squared distances of its draws to their mean, divided by D - 1.
CONTRIBUTIONS = ("base", "perturbed", "difference", "covariance", "perturbed_draws", "difference_draws")
#: The identity is exact in algebra, so it must hold to this share of its terms.
_ROUNDING = 1e-9


class IdentityError(AttentionDropError):
    """Var[g_AD] = Var[g_base] + 2 Cov + Var[dg] does not hold, so a number is wrong."""


@dataclass(frozen=True)
class Moments:
    """One layer: contribution -> [units], and the squared norms of the mean gradient and the mean difference."""

    of_units: dict[str, np.ndarray]
    mean2: float
    mean_difference2: float


def measure(gradients: PairedGradients, on_progress: Callable[[float], None]) -> dict[str, Moments]:
    """The moments of every layer and in total. Two passes, means first, so that no large sums are subtracted."""
    # Gradients that were not kept are computed again: then the second pass takes as long as the first.
    first = 0.9 if gradients.keeps else 0.5
    means = _means(gradients, lambda share: on_progress(first * share))
    found: dict[str, list[np.ndarray]] = {layer: [] for layer in means}
    for share, chunk in _with_shares(gradients):
        for layer, base in chunk.base.items():
            found[layer].append(_contributions(base, [draw[layer] for draw in chunk.draws], *means[layer]))
        on_progress(first + (1 - first) * share)
    tables = {layer: np.concatenate(parts, axis=1) for layer, parts in found.items()}
    norms = {layer: (float(a @ a), float((c - a) @ (c - a))) for layer, (a, c) in means.items()}
    result = {layer: _named(table, *norms[layer]) for layer, table in tables.items()}
    result[TOTAL] = _named(
        np.sum(list(tables.values()), axis=0), sum(a for a, _ in norms.values()), sum(d for _, d in norms.values())
    )
    return result


def variances(moments: Moments, draws: int, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The traces of four covariances, for each row of weights [rows, units] that sum to the number of units.

    The means of D draws vary between units by Var_units + Var_draws / D, so
    Var = between / (K - 1) + (1 - 1/D) within / K is unbiased. Cov has no second term, since g_base has no draws.
    """
    units, of_units = weights.shape[1], moments.of_units
    found: dict[str, np.ndarray] = {}
    for name in ("base", "perturbed", "difference", "covariance"):
        found[name] = weights @ of_units[name] / (units - 1)
        if (within := of_units.get(f"{name}_draws")) is not None:
            found[name] = found[name] + (1 - 1 / draws) * (weights @ within) / units
    return found


def check_identity(found: Mapping[str, float]) -> None:
    """Raise if the four numbers do not add up."""
    right = found["base"] + 2 * found["covariance"] + found["difference"]
    size = found["perturbed"] + found["base"] + 2 * abs(found["covariance"]) + found["difference"]
    if not abs(found["perturbed"] - right) <= _ROUNDING * size:
        raise IdentityError(
            f"Var[g_AD] = {found['perturbed']:.9g}, but Var[g_base] + 2 Cov + Var[dg] = {right:.9g}: a number is wrong"
        )


def _means(gradients: PairedGradients, on_progress: Callable[[float], None]) -> dict[str, tuple[Tensor, Tensor]]:
    """Layer -> the mean gradient without and with perturbation, in float64."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for share, chunk in _with_shares(gradients):
        for layer, base in chunk.base.items():
            new = base.double().sum(0), _mean_of_draws(chunk.draws, layer).sum(0)
            old = sums.get(layer)
            sums[layer] = new if old is None else (old[0] + new[0], old[1] + new[1])
        on_progress(share)
    if not all(bool(total.isfinite().all()) for pair in sums.values() for total in pair):
        raise ArgumentError("model: expected finite gradients, received some that are infinite or not a number")
    return {layer: (a / gradients.units, c / gradients.units) for layer, (a, c) in sums.items()}


def _with_shares(gradients: PairedGradients) -> Iterator[tuple[float, Chunk]]:
    """The chunks, each with the share of all units that is done after it."""
    done = 0
    for chunk in gradients:
        done += len(next(iter(chunk.base.values())))
        yield done / gradients.units, chunk


def _mean_of_draws(draws: list[ByLayer], layer: str) -> Tensor:
    return torch.stack([draw[layer] for draw in draws]).double().mean(0)


def _contributions(base: Tensor, draws: list[Tensor], base_mean: Tensor, drawn_mean: Tensor) -> np.ndarray:
    """[6, units]. Each row is computed on its own, so that the identity is a real check."""
    a = base.double()
    c = torch.stack(draws).double()
    d = c - a
    own_c, own_d, within = c.mean(0), d.mean(0), len(draws) - 1
    away_a, away_c, away_d = a - base_mean, own_c - drawn_mean, own_d - (drawn_mean - base_mean)
    rows = [
        away_a.square().sum(-1),
        away_c.square().sum(-1),
        away_d.square().sum(-1),
        (away_a * away_d).sum(-1),
        (c - own_c).square().sum((0, -1)) / within,
        (d - own_d).square().sum((0, -1)) / within,
    ]
    table: np.ndarray = torch.stack(rows).cpu().numpy()
    return table


def _named(table: np.ndarray, mean2: float, mean_difference2: float) -> Moments:
    return Moments(dict(zip(CONTRIBUTIONS, table, strict=True)), mean2, mean_difference2)
