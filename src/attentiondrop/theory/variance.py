"""`gradient_variance`: where the variance of a mini-batch gradient comes from, with and without perturbation.

With dg = g_AD - g_base on the same mini-batch, Var[g_AD] = Var[g_base] + 2 Cov(g_base, dg) + Var[dg]. So the variance
falls if and only if Cov < -Var[dg] / 2. (In the paper's lemma the sign of the covariance is wrong, so its condition is
wrong, too.) If the perturbation does not change the expected gradient of a mini-batch, Cov is 0 and the variance cannot
fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import ArgumentError, ShapeError
from ..validation import integer, one_of
from .binomial import open_unit
from .gradients import Loss, PairedGradients
from .moments import TOTAL, Moments, check_identity, measure, variances
from .stochastic import device_of, shares_draws


@dataclass(frozen=True)
class Terms:
    """Traces of covariances of a mini-batch gradient, for one layer or for all; all estimates are unbiased."""

    base: float
    perturbed: float
    difference: float
    covariance: float
    #: The part of `perturbed` that comes from the draws, given the mini-batch.
    from_draws: float
    #: Squared norms of the expected gradient and of the expected difference; the paper assumes that the latter is 0.
    mean2: float
    mean_difference2: float
    #: Name -> (low, high), from a bootstrap over examples or mini-batches; NaN if there are only two of them.
    intervals: dict[str, tuple[float, float]]

    @property
    def ratio(self) -> float:
        """Var[g_AD] / Var[g_base]: below 1 if the perturbation reduces the variance; NaN if Var[g_base] is 0."""
        return self.perturbed / self.base if self.base else math.nan

    @property
    def reduces(self) -> bool:
        """The corrected condition, Cov < -Var[dg] / 2."""
        return self.covariance < -self.difference / 2

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; None for NaN and infinity."""
        intervals = {name: [_finite(end) for end in ends] for name, ends in self.intervals.items()}
        return asdict(self) | {"ratio": _finite(self.ratio), "reduces": self.reduces, "intervals": intervals}


@dataclass(frozen=True)
class GradientVariance:
    """The decomposition for all parameters and for each layer."""

    total: Terms
    layers: dict[str, Terms]
    batch_size: int
    #: `samples` (a gradient for each example) or `batches`.
    method: str
    #: How many examples or mini-batches.
    units: int
    draws: int
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: getattr(self, name) for name in ("batch_size", "method", "units", "draws", "confidence")}
        layers = {name: terms.to_dict() for name, terms in self.layers.items()}
        return {**plain, "total": self.total.to_dict(), "layers": layers}


def gradient_variance(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    loss: Loss = cross_entropy,
    batch_size: int = 64,
    draws: int = 2,
    method: str = "auto",
    batches: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    resamples: int = 1000,
    on_progress: Callable[[float], None] = lambda share: None,
) -> GradientVariance:
    """Measure Var[g_base], Var[g_AD], Var[dg] and Cov(g_base, dg) for mini-batches of `batch_size`.

    Variances are over mini-batches of independent examples and, with perturbation, over draws. The base is the model in
    `eval()`, the perturbed one is the model in `train()`. The model does not change.

    Args:
        model: the model, perturbed in training mode.
        inputs, labels: a sample of the data, in memory.
        loss: `loss(model(inputs), labels)`, a mean over the batch.
        batch_size: of the mini-batches whose gradient is meant.
        draws: of each example or mini-batch, at least 2.
        method: `"samples"`: the gradient of each example by `torch.func`, with all variances divided by the batch size.
            This is exact if no two examples share a draw, and far more precise. `"batches"`: the gradients of
            mini-batches. `"auto"`: samples, unless something draws once per call.
        batches: with `"batches"`, how many mini-batches to draw at random, with replacement. Then `inputs` count as all
            data, as in training, and intervals are for them. By default the mini-batches are disjoint, and intervals
            are for the distribution that `inputs` are a sample of, as with `"samples"`.
        seed: of draws, order and bootstrap.
        confidence: of the intervals.
        resamples: of the bootstrap.
        on_progress: called with the share that is done.

    Raises:
        IdentityError: if the four numbers do not add up to rounding.

    Example:
        >>> import torch
        >>> from attentiondrop.torch import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
        >>> model = nn.Sequential(layer, nn.Flatten(), nn.Linear(80, 3))
        >>> attachment = attach(model, "dropkey(p=0.3)")
        >>> found = gradient_variance(model, torch.randn(32, 5, 16), torch.randint(3, (32,)), batch_size=8)
        >>> terms = found.total
        >>> abs(terms.perturbed - terms.base - 2 * terms.covariance - terms.difference) < 1e-9 * terms.perturbed
        True
    """
    one_of("method", method, ("auto", "samples", "batches"))
    draws, batch_size = integer("draws", draws, minimum=2), integer("batch_size", batch_size, minimum=1)
    resamples, confidence = integer("resamples", resamples, minimum=100), open_unit("confidence", confidence)
    seed = integer("seed", seed, minimum=0)
    if len(inputs) != len(labels):
        raise ShapeError(f"labels: expected {len(inputs)} of them, one for each input, received {len(labels)}")
    if method == "auto":
        method = "batches" if shares_draws(model) else "samples"
    device = device_of(model)
    size = None if method == "samples" else batch_size
    if batches is not None:
        batches = integer("batches", batches, minimum=2)
    gradients = PairedGradients(model, inputs.to(device), labels.to(device), loss, size, batches, draws, seed)
    if gradients.units < 2:
        raise ArgumentError(
            f"inputs: expected at least two {'examples' if size is None else f'mini-batches of {size}'}, received "
            f"{len(inputs)} examples"
        )
    moments = measure(gradients, on_progress)
    scale = batch_size if method == "samples" else 1
    weights = _resampling(gradients.units, resamples, seed)
    layers = {name: _terms(entry, draws, scale, weights, confidence) for name, entry in moments.items()}
    total = layers.pop(TOTAL)
    return GradientVariance(total, layers, batch_size, method, gradients.units, draws, confidence)


def _terms(moments: Moments, draws: int, scale: int, weights: np.ndarray, confidence: float) -> Terms:
    units = weights.shape[1]
    found = {name: float(value[0]) for name, value in variances(moments, draws, np.ones((1, units))).items()}
    check_identity(found)
    resampled = variances(moments, draws, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled["ratio"] = resampled["perturbed"] / resampled["base"]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    intervals = {
        name: np.quantile(values, tails) / (1 if name == "ratio" else scale) for name, values in resampled.items()
    }
    spread_of_difference = float(moments.of_units["difference"].sum()) / (units - 1)
    return Terms(
        **{name: value / scale for name, value in found.items()},
        from_draws=float(moments.of_units["perturbed_draws"].mean()) / scale,
        # The squared norm of an average over K units is too large by their variance divided by K.
        mean2=moments.mean2 - found["base"] / units,
        mean_difference2=moments.mean_difference2 - spread_of_difference / units,
        # Two units are equally far from their mean, so all resamples have one variance, and tell nothing.
        intervals={
            name: (float(ends[0]), float(ends[1])) if units > 2 else (math.nan, math.nan)
            for name, ends in intervals.items()
        },
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _resampling(units: int, resamples: int, seed: int) -> np.ndarray:
    """How often each unit is in each resample, [resamples, units]."""
    generator = np.random.default_rng(seed)
    counts: np.ndarray = generator.multinomial(units, np.full(units, 1 / units), size=resamples)
    return counts.astype(np.float64)
