"""`posterior_certificate`: a PAC-Bayes bound from the training data, with a prior learned on a part of it.

The training part is split at random into two shares. The model is trained on the first share only. The prior is a
Gaussian around the query and key projections of that model; all other weights are fixed. The posterior, a Gaussian with
other means and deviations, is trained on both shares. The bound uses the second share, which the prior has never seen,
and contains KL(posterior || prior). Perturbations and dropout have the same distribution under both, so they add
nothing to the KL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ArgumentError, ShapeError, bad_argument
from ..validation import integer, number
from .binary_kl import kl_inverse
from .binomial import open_unit
from .certificate import PSEUDO_RANDOM, UNIT_LOSS, Certificate, checked_suspects, mean_bound
from .fitting import Objective, Schedule, fit_model, fit_posterior, steps, task_loss
from .gaussian_weights import GaussianWeights, query_key_projections
from .pac_bayes import Bound, pac_bayes_bound
from .rounding import next_above
from .stochastic import RandomisedPredictor, device_of, frozen, modes_kept, predictions, seeded

#: Called with a label for the present step and the share of all work that is done, from 0 to 1.
OnProgress = Callable[[str, float], None]

_PREDICTOR = "a model trained on a share of the training part, its query and key weights drawn from the posterior"
_TRAINING_DATA = (
    "the training examples are an i.i.d. sample of the distribution whose risk is meant, with the labels they have",
    "the prior saw only its own share of them, picked at random; its deviation, the recipe and the method's settings "
    "were chosen without them (tuning by training on them breaks this)",
)
_OWN_WEIGHTS = "every example and draw has weights and perturbations of its own, independent of each other"
_HELD_OUT = "the held-out examples are an i.i.d. sample of the same distribution, used for nothing else"
#: How delta is split between the PAC-Bayes bound and the error of an empirical risk that is estimated from draws.
_FOR_BOUND, _FOR_DRAWS = 0.8, 0.2
#: Examples in one call while risks are measured.
_BATCH = 256


@dataclass(frozen=True)
class PosteriorSettings:
    """How prior and posterior are trained."""

    #: The share of the training examples for the prior.
    prior_share: float = 0.5
    #: The deviation of a query or key weight under the prior, times the root of its layer's number of inputs.
    prior_scale: float = 0.1
    prior: Schedule = field(default_factory=Schedule)
    posterior: Schedule = field(default_factory=lambda: Schedule(epochs=3, learning_rate=1e-3, weight_decay=0.0))
    #: Draws of each example when risks are measured.
    draws: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        open_unit("prior_share", self.prior_share)
        integer("draws", self.draws, minimum=2)
        integer("seed", self.seed, minimum=0)
        if not number("prior_scale", self.prior_scale, 0.0) > 0:
            raise bad_argument("prior_scale", "a number > 0", self.prior_scale)


@dataclass(frozen=True)
class PosteriorCertificate:
    """A bound from training data; if held-out examples were given, also bounds from those for the same predictor."""

    certificate: Certificate
    bound: Bound
    #: The bound of the prior alone (KL = 0), with the same delta.
    prior_value: float
    prior_examples: int
    #: How many weights are random.
    weights: int
    #: For the randomised predictor, from held-out examples with labels.
    held_out: Certificate | None = None
    #: For the means of the posterior without perturbation, through disagreement on held-out inputs, without labels.
    deterministic: Certificate | None = None
    #: The error of these means on the held-out examples.
    deterministic_error: float | None = None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Those that exist, the main one first."""
        return tuple(one for one in (self.certificate, self.deterministic, self.held_out) if one is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: getattr(self, name) for name in ("prior_value", "prior_examples", "weights")}
        return {
            "certificates": [entry.to_dict() for entry in self.certificates],
            "bound": self.bound.to_dict(),
            **plain,
            "deterministic_error": self.deterministic_error,
        }


def posterior_certificate(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    held_out: tuple[Tensor, Tensor] | None = None,
    suspects: np.ndarray | None = None,
    objective: Objective = task_loss,
    settings: PosteriorSettings | None = None,
    delta: float = 0.05,
    on_progress: OnProgress = lambda label, share: None,
) -> PosteriorCertificate:
    """Train a prior and a posterior, and bound the 0-1 risk of the latter.

    Args:
        model: freshly initialised, with the method attached; it is trained here. Its queries and keys must come from
            linear layers (`query_key_projections` finds them).
        inputs, labels: the training part, in memory.
        held_out: inputs and labels that are used only for the further certificates.
        suspects: a boolean array, True for held-out examples that also occur in training. They count as errors, and as
            examples on which draws differ, which can only raise a bound.
        objective: the training loss of the prior's model.
        settings: shares, deviations, epochs.
        delta: each certificate is wrong with probability at most delta.
        on_progress: called with a label and the share that is done.
    """
    settings = PosteriorSettings() if settings is None else settings
    delta = open_unit("delta", delta)
    first = _prior_examples(inputs, labels, settings)
    bad = _suspects(held_out, suspects, inputs)
    device = device_of(model)
    inputs, labels = inputs.to(device), labels.to(device)
    with modes_kept(model), seeded(settings.seed, device):
        # A model that cannot be certified raises here, before it is trained.
        _draw(model, GaussianWeights(query_key_projections(model), settings.prior_scale), inputs[:1], 1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(settings.seed)).to(device)
    seen, fresh = order[:first], order[first:]
    with modes_kept(model), seeded(settings.seed, device):
        model, prior, posterior = _train(
            model, inputs, labels, seen, len(fresh), objective, settings, delta, on_progress
        )
        on_progress("risk of prior and posterior", 0.85)
        rest = (inputs[fresh], labels[fresh])
        losses = _losses(model, posterior, *rest, settings.draws)
        kl = max(0.0, float(posterior.kl().detach()))
        bound = _bound(losses, kl, delta)
        main = Certificate(
            "posterior",
            _PREDICTOR + ", perturbations active, 0-1 loss",
            bound.value,
            float(losses.mean()),
            len(fresh),
            settings.draws,
            delta,
            f"Seeger's PAC-Bayes bound with KL = {kl:.2f}; the error of finitely many draws by kl inverse",
            (*_TRAINING_DATA, _OWN_WEIGHTS, UNIT_LOSS, PSEUDO_RANDOM),
        )
        prior_value = _bound(_losses(model, prior, *rest, settings.draws), 0.0, delta).value
        size = sum(shift.numel() for shift in posterior.shifts)
        result = PosteriorCertificate(main, bound, prior_value, first, size)
        if held_out is not None:
            on_progress("held-out examples", 0.95)
            x, y = (tensor.to(device) for tensor in held_out)
            through = _bound(losses, kl, delta / 2).value
            result = _with_held_out(result, model, posterior, x, y, bad, through, settings.draws, delta)
    on_progress("certified", 1.0)
    return result


def _train(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    seen: Tensor,
    fresh: int,
    objective: Objective,
    settings: PosteriorSettings,
    delta: float,
    on_progress: OnProgress,
) -> tuple[nn.Module, GaussianWeights, GaussianWeights]:
    """Train `model` as the model of the prior, then the posterior. Return a frozen copy of the model, and both.

    Frozen, because adaptive rates would go on moving, by examples that the prior must not have seen.
    """

    def counter(label: str, total: int, start: float, end: float) -> Callable[[], None]:
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            on_progress(label, start + (end - start) * done / total)

        return step

    step = counter("training the prior", steps(len(seen), settings.prior), 0.0, 0.5)
    fit_model(model, objective, inputs[seen], labels[seen], settings.prior, settings.seed, step)
    fixed = frozen(model)
    projections = query_key_projections(fixed)
    prior, posterior = (GaussianWeights(projections, settings.prior_scale).to(inputs.device) for _ in range(2))
    step = counter("training the posterior", steps(len(labels), settings.posterior), 0.5, 0.85)
    fit_posterior(fixed, posterior, inputs, labels, fresh, delta, settings.posterior, settings.seed + 1, step)
    return fixed, prior, posterior


def _prior_examples(inputs: Tensor, labels: Tensor, settings: PosteriorSettings) -> int:
    if len(inputs) != len(labels) or labels.ndim != 1:
        raise ShapeError(f"labels: expected [{len(inputs)}], one for each input, received {list(labels.shape)}")
    first = round(settings.prior_share * len(labels))
    if not 0 < first < len(labels):
        raise ArgumentError(
            f"prior_share: expected one that splits {len(labels)} examples into two parts, both not empty, received "
            f"{settings.prior_share}"
        )
    return first


def _suspects(held_out: tuple[Tensor, Tensor] | None, suspects: np.ndarray | None, inputs: Tensor) -> np.ndarray:
    """Check the held-out examples, before anything is trained; return which are suspects."""
    if held_out is None:
        return checked_suspects(suspects, 0)
    x, y = held_out
    if len(x) < 1 or x.shape[1:] != inputs.shape[1:]:
        raise ShapeError(
            f"held_out: expected inputs of the shape [examples, {', '.join(map(str, inputs.shape[1:]))}], as those for "
            f"training, received {list(x.shape)}"
        )
    if y.shape != (len(x),):
        raise ShapeError(f"held_out: expected labels [{len(x)}], one for each input, received {list(y.shape)}")
    return checked_suspects(suspects, len(x))


def _draw(model: nn.Module, weights: GaussianWeights, inputs: Tensor, draws: int) -> list[Tensor]:
    """Classes [draws, B] of the randomised predictor, batch by batch."""
    predictor = RandomisedPredictor(model)
    with weights.on(predictor.model, "example"), torch.no_grad():
        return [torch.stack([predictor(part).argmax(-1) for _ in range(draws)]) for part in inputs.split(_BATCH)]


def _losses(model: nn.Module, weights: GaussianWeights, inputs: Tensor, labels: Tensor, draws: int) -> np.ndarray:
    """0-1 losses [draws, n]."""
    wrong: np.ndarray = (torch.cat(_draw(model, weights, inputs, draws), dim=1) != labels).double().cpu().numpy()
    return wrong


def _bound(losses: np.ndarray, kl: float, delta: float) -> Bound:
    """Bound the empirical risk from its independent draws, then the risk."""
    share = -math.log(_FOR_DRAWS * delta) / losses.size
    return pac_bayes_bound(kl_inverse(float(losses.mean()), share), kl, losses.shape[1], _FOR_BOUND * delta)


def _with_held_out(
    result: PosteriorCertificate,
    model: nn.Module,
    posterior: GaussianWeights,
    inputs: Tensor,
    labels: Tensor,
    suspects: np.ndarray,
    risk: float,
    draws: int,
    delta: float,
) -> PosteriorCertificate:
    """Add the certificates from held-out examples; `risk` bounds the risk of the posterior with delta / 2."""
    drawn = torch.cat(_draw(model, posterior, inputs, draws), dim=1)
    with posterior.on(model.eval(), None), torch.no_grad():
        fixed = torch.cat([predictions(model, part).argmax(-1) for part in inputs.split(_BATCH)])
    wrong, apart = (
        np.where(suspects, 1.0, (drawn != other).double().mean(0).cpu().numpy()) for other in (labels, fixed)
    )
    n = len(labels)
    direct = Certificate(
        "posterior, held-out",
        _PREDICTOR + ", perturbations active, 0-1 loss",
        mean_bound(wrong, delta),
        float(wrong.mean()),
        n,
        draws,
        delta,
        "kl inverse over the held-out examples",
        (_HELD_OUT, _OWN_WEIGHTS, UNIT_LOSS, PSEUDO_RANDOM),
    )
    mean = Certificate(
        "posterior mean, through disagreement",
        "the same model in eval() with the means of the posterior, 0-1 loss",
        min(1.0, next_above(risk + mean_bound(apart, delta / 2))),
        min(1.0, result.certificate.estimate + float(apart.mean())),
        n,
        draws,
        delta,
        "the posterior's bound plus its disagreement with the means on held-out inputs, delta / 2 each",
        (*_TRAINING_DATA, _HELD_OUT + " (their labels are not needed)", _OWN_WEIGHTS, UNIT_LOSS, PSEUDO_RANDOM),
    )
    error = float((fixed != labels).double().mean())
    return PosteriorCertificate(
        result.certificate,
        result.bound,
        result.prior_value,
        result.prior_examples,
        result.weights,
        direct,
        mean,
        error,
    )
