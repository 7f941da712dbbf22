"""KL divergences between posteriors and priors, and the paper's expression, which is not a KL divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ShapeError, bad_argument
from ..validation import integer, number

#: Above this sigma the paper's expression is negative; a KL divergence never is.
PAPER_SIGN_CHANGE = 1.0 / math.sqrt(2.0 * math.pi * math.e)


@dataclass(frozen=True)
class Divergence:
    """A number used as a KL divergence: its value, whether it is one (`valid`), and if not, why (`notes`)."""

    value: float
    valid: bool = True
    notes: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.value


def gaussian_kl(mean: Any, std: Any, prior_mean: Any, prior_std: Any) -> float:
    """KL between two Gaussians with diagonal covariances, summed over entries; arguments broadcast as NumPy arrays.

    Example:
        >>> gaussian_kl(1.0, 1.0, 0.0, 1.0)
        0.5
        >>> gaussian_kl([0.0, 0.0], 0.1, 0.0, 0.1)  # the posterior is the prior
        0.0
    """
    arrays = [np.asarray(value, dtype=np.float64) for value in (mean, std, prior_mean, prior_std)]
    for name, array in zip(("mean", "std", "prior_mean", "prior_std"), arrays, strict=True):
        if not np.isfinite(array).all() or ("std" in name and (array <= 0).any()):
            raise bad_argument(name, "finite numbers" + " above 0" * ("std" in name), f"{array.min()} to {array.max()}")
    try:
        location, scale, prior_location, prior_scale = np.broadcast_arrays(*arrays)
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ShapeError(
            f"mean, std, prior_mean, prior_std: expected shapes that broadcast, received {shapes}"
        ) from None
    ratio = scale / prior_scale
    terms = -np.log(ratio) + 0.5 * (ratio**2 - 1.0 + ((location - prior_location) / prior_scale) ** 2)
    return float(terms.sum())


def logit_noise_kl(sigma: float, prior_sigma: float, heads: int, tokens: int, layers: int = 1) -> float:
    """What the paper should have used: the KL of logit noise N(0, sigma^2) against a prior N(0, prior_sigma^2).

    `layers * heads * tokens^2 * (ln(prior_sigma / sigma) + sigma^2 / (2 prior_sigma^2) - 1/2)`: zero at
    `sigma == prior_sigma`, positive for smaller and for larger sigma. So more noise does not always lower it.

    >>> logit_noise_kl(0.1, 0.1, heads=4, tokens=17)
    0.0
    """
    count = integer("layers", layers, 1) * integer("heads", heads, 1) * integer("tokens", tokens, 1) ** 2
    return count * gaussian_kl(0.0, _positive("sigma", sigma), 0.0, _positive("prior_sigma", prior_sigma))


def paper_kl(sigma: float, heads: int, tokens: int) -> Divergence:
    """The paper's `H n^2 (-ln sigma + C0)` with `C0 = -ln(2 pi e) / 2`, and what is wrong with it.

    >>> paper_kl(0.5, heads=4, tokens=17).value < 0
    True
    """
    sigma = _positive("sigma", sigma)
    count = integer("heads", heads, 1) * integer("tokens", tokens, 1) ** 2
    value = count * (-math.log(sigma) - 0.5 * math.log(2.0 * math.pi * math.e))
    notes = [
        "not a KL divergence: that of a Gaussian to the paper's Dirac prior is infinite, and `infinity * 0`, which the "
        "paper drops, is not 0; what is left is minus the Gaussian's differential entropy",
        "the paper's prior sits at the logits, which change with the input, so it is no distribution over predictors",
    ]
    if value < 0:
        notes.append(f"negative, as for every sigma above 1/sqrt(2 pi e) = {PAPER_SIGN_CHANGE:.3f}")
    return Divergence(value, valid=False, notes=tuple(notes))


def _positive(name: str, value: float) -> float:
    if number(name, value, 0.0) == 0.0:
        raise bad_argument(name, "a number > 0", value)
    return float(value)
