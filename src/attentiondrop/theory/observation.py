"""Measure a model on held-out examples: losses with and without perturbation, and how much views differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ArgumentError, bad_argument
from ..evaluation.calibration import check_predictions
from ..validation import integer
from .certificate import check_unit_interval
from .stochastic import RandomisedPredictor, device_of, modes_kept, predictions, seeded

#: Maps logits [B, classes] and labels [B] to losses [B] in [0, 1].
Loss = Callable[[Tensor, Tensor], Tensor]


def zero_one(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the most likely class is wrong."""
    return (logits.argmax(-1) != labels).double()


def softmax_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """1 - the probability of the right class: the chance of error of a predictor that draws its answer from softmax."""
    right = torch.softmax(logits.double(), -1).gather(-1, labels[:, None]).squeeze(-1)
    return (1.0 - right).clamp(0.0, 1.0)


LOSSES: dict[str, Loss] = {"zero-one": zero_one, "softmax": softmax_loss}


@dataclass(frozen=True)
class Observation:
    """Arrays with one entry per example, in [0, 1]; entries that involve draws are means over them."""

    draws: int
    #: The chosen loss, with and without perturbation.
    stochastic: np.ndarray
    deterministic: np.ndarray
    #: The same for the 0-1 loss and for 1 - softmax.
    stochastic_zero_one: np.ndarray
    deterministic_zero_one: np.ndarray
    stochastic_softmax: np.ndarray
    #: How often a draw changes the prediction; how often two draws differ.
    apart: np.ndarray
    pairs: np.ndarray
    #: min(1, sqrt(KL(softmax without || softmax with perturbation) / 2)).
    pinsker: np.ndarray

    def __len__(self) -> int:
        return len(self.stochastic)


def observe(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    draws: int = 4,
    loss: str | Loss = "zero-one",
    seed: int = 0,
    on_batch: Callable[[int], None] = lambda examples: None,
) -> Observation:
    """Run the model over all batches, once without and `draws` times with perturbation. The model does not change.

    Args:
        model: gives logits [B, classes]; perturbed in training mode.
        batches: inputs and integer labels, moved to the model's device.
        draws: at least 2.
        loss: `"zero-one"`, `"softmax"`, or a function of logits and labels that gives [B] values in [0, 1].
        seed: of the draws.
        on_batch: called with the number of examples done.
    """
    draws = integer("draws", draws, minimum=2)
    chosen = _loss(loss)
    device = device_of(model)
    perturbed = RandomisedPredictor(model)
    columns: list[np.ndarray] = []
    with modes_kept(model), seeded(seed, device), torch.no_grad():
        model.eval()
        done = 0
        for inputs, labels in batches:
            inputs = inputs.to(device)
            plain = predictions(model, inputs)
            check_predictions(plain, labels)
            labels = labels.to(device).long()
            drawn = torch.stack([perturbed(inputs) for _ in range(draws)])
            columns.append(_columns(plain, drawn, labels, chosen))
            done += len(inputs)
            on_batch(done)
    if not columns:
        raise ArgumentError("batches: expected at least one, received none")
    return Observation(draws, *np.concatenate(columns, axis=1))


def _columns(plain: Tensor, drawn: Tensor, labels: Tensor, loss: Loss) -> np.ndarray:
    """[8, B], in the order of `Observation`. `drawn` is [draws, B, classes]."""
    choices, choice = drawn.argmax(-1), plain.argmax(-1)
    pairs = torch.stack([a != b for a, b in itertools.combinations(choices, 2)]).double().mean(0)
    log_p, log_q = torch.log_softmax(plain.double(), -1), torch.log_softmax(drawn.double(), -1)
    # A class with probability 0 in p adds 0, also if q is 0 there. Rounding can give a KL below 0.
    kl = (log_p.exp() * (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0)).sum(-1).clamp_min(0.0)
    rows = [
        _average(loss, drawn, labels),
        _average(loss, plain[None], labels),
        _average(zero_one, drawn, labels),
        _average(zero_one, plain[None], labels),
        _average(softmax_loss, drawn, labels),
        (choices != choice).double().mean(0),
        pairs,
        (kl / 2).sqrt().clamp_max(1.0).mean(0),
    ]
    return torch.stack([row.cpu() for row in rows]).numpy()


def _average(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    values = torch.stack([loss(entry, labels).double() for entry in logits])
    if values.shape != logits.shape[:2]:
        raise ArgumentError(
            f"loss: expected a function that gives one value per example, [{len(labels)}], received "
            f"{list(values.shape[1:])}"
        )
    check_unit_interval(values.cpu().numpy())
    return values.mean(0)


def _loss(loss: str | Loss) -> Loss:
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise bad_argument("loss", "'zero-one', 'softmax' or a function of logits and labels", loss)
    return LOSSES[loss]
