"""`risk_certificate`: bounds on the true risk of a trained model, from examples that it has never seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from .binomial import binomial_upper, open_unit
from .certificate import IID, OWN_DRAWS, PSEUDO_RANDOM, UNIT_LOSS, Certificate, checked_suspects, mean_bound
from .disagreement import through_disagreement, through_kl, through_views
from .observation import Loss, observe


@dataclass(frozen=True)
class RiskReport:
    """Certificates for one model. Each one holds with probability 1 - delta."""

    #: The model with its perturbations active, under the chosen loss.
    stochastic: Certificate
    #: The model in eval(), directly.
    deterministic: Certificate
    #: Indirect bounds: from the risk of the randomised predictor and the disagreement between views.
    disagreement: Certificate
    views: Certificate
    consistency: Certificate
    notes: tuple[str, ...] = ()

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """All of them, the main one first."""
        return (self.stochastic, self.deterministic, self.disagreement, self.views, self.consistency)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"certificates": [entry.to_dict() for entry in self.certificates], "notes": list(self.notes)}


def risk_certificate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    draws: int = 4,
    delta: float = 0.05,
    loss: str | Loss = "zero-one",
    seed: int = 0,
    suspects: np.ndarray | None = None,
    on_batch: Callable[[int], None] = lambda examples: None,
) -> RiskReport:
    """Certify a model on held-out examples.

    The perturbations do not depend on the examples, so their posterior is their prior and KL = 0. PAC-Bayes then
    becomes Chernoff's bound: kl(observed || risk) <= ln(1/delta) / n. Every example and draw has its own perturbations,
    so the means over the draws of an example are n i.i.d. variables whose mean is the risk. The bound therefore
    includes the error of finitely many draws, and more draws only make `estimate` less noisy.

    Args:
        model: gives logits [B, classes]; perturbed in training mode, as `attach` and dropout do it.
        batches: inputs and integer labels that had no part in training, tuning or picking an epoch.
        draws: at least 2.
        delta: each certificate is wrong with probability at most delta.
        loss: `"zero-one"`, `"softmax"` (1 - the probability of the right class), or a function of logits and labels
            that gives one value in [0, 1] per example.
        seed: of the draws.
        suspects: a boolean array [n], True for examples that may have been seen in training. They count as errors, with
            loss 1, and as examples on which views differ, which can only raise a bound.
        on_batch: called with the number of examples done.

    Example:
        >>> import torch
        >>> from attentiondrop.torch import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
        >>> model = nn.Sequential(layer, nn.Flatten(), nn.Linear(80, 3))
        >>> attachment = attach(model, "hard(p=0.1,k=3)")
        >>> report = risk_certificate(model, [(torch.randn(200, 5, 16), torch.randint(3, (200,)))])
        >>> report.stochastic.estimate < report.stochastic.value < 1
        True
    """
    delta = open_unit("delta", delta)
    seen = observe(model, batches, draws=draws, loss=loss, seed=seed, on_batch=on_batch)
    n = len(seen)
    bad = checked_suspects(suspects, n)

    def charged(values: np.ndarray) -> np.ndarray:
        return np.where(bad, 1.0, values)

    stochastic, deterministic = charged(seen.stochastic), charged(seen.deterministic)
    errors = charged(seen.stochastic_zero_one)
    what = loss if isinstance(loss, str) else getattr(loss, "__name__", "a function")
    notes = ["each certificate holds with probability 1 - delta on its own; k of them at once with 1 - k delta"]
    if bad.any():
        notes.append(f"{int(bad.sum())} of {n} held-out examples also occur in training or tuning: counted as errors")
    common = (IID, UNIT_LOSS)
    # Not by looking at the values: of another loss, all of them could be 0 or 1 by chance, and delta would not hold.
    exact = loss == "zero-one"
    return RiskReport(
        Certificate(
            "stochastic",
            f"the model in train(), perturbations active, {what} loss",
            mean_bound(stochastic, delta),
            float(stochastic.mean()),
            n,
            seen.draws,
            delta,
            "kl inverse over the examples, with KL(posterior || prior) = 0 over the perturbations",
            (*common, OWN_DRAWS, PSEUDO_RANDOM),
        ),
        Certificate(
            "deterministic",
            f"the model in eval(), {what} loss",
            binomial_upper(round(deterministic.sum()), n, delta) if exact else mean_bound(deterministic, delta),
            float(deterministic.mean()),
            n,
            1,
            delta,
            "inverse of the binomial tail over the examples" if exact else "kl inverse over the examples",
            common,
        ),
        # Views agree more on examples of the training data, so these are charged here too.
        through_disagreement(errors, charged(seen.apart), seen.draws, delta),
        through_views(errors, charged(seen.pairs), seen.draws, delta),
        through_kl(charged(seen.stochastic_softmax), charged(seen.pinsker), seen.draws, delta),
        tuple(notes),
    )
