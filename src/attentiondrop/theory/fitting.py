"""The two trainings behind `posterior_certificate`: of the model of the prior, and of the Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..learning_rate import warmup_then_cosine
from .gaussian_weights import GaussianWeights
from .stochastic import predictions


@dataclass(frozen=True)
class Schedule:
    """Settings of AdamW. The learning rate rises over the share `warmup` of the steps, then falls to 0 as a cosine."""

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.1


#: The training loss of a batch: `objective(model, inputs, labels)`.
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]


def task_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy."""
    return cross_entropy(predictions(model, inputs), labels)


def fit_model(
    model: nn.Module,
    objective: Objective,
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    seed: int,
    on_step: Callable[[], None],
) -> None:
    """Train the perturbed model."""
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _fit(parameters, lambda x, y: objective(model, x, y), inputs, labels, schedule, seed, on_step)


def fit_posterior(
    model: nn.Module,
    weights: GaussianWeights,
    inputs: Tensor,
    labels: Tensor,
    bound_n: int,
    delta: float,
    schedule: Schedule,
    seed: int,
    on_step: Callable[[], None],
) -> None:
    """Minimise McAllester's bound over shifts and deviations; the model stays fixed.

    The 0-1 loss has no gradient, so the cross-entropy in bits, which is an upper bound of it, is used instead. The
    certificate holds for any posterior, so it does not matter how this one is found.
    """
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    constant = math.log(2.0 * math.sqrt(bound_n) / delta)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with weights.on(model, "call"):
            bits = task_loss(model, x, y) / math.log(2.0)
        return bits + ((weights.kl() + constant) / (2 * bound_n)).sqrt().to(bits.dtype)

    _fit(list(weights.parameters()), loss, inputs, labels, schedule, seed, on_step)


def steps(count: int, schedule: Schedule) -> int:
    """How many times `on_step` is called."""
    return schedule.epochs * math.ceil(count / schedule.batch_size)


def _fit(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    seed: int,
    on_step: Callable[[], None],
) -> None:
    total = steps(len(labels), schedule)
    optimiser = torch.optim.AdamW(list(parameters), lr=schedule.learning_rate, weight_decay=schedule.weight_decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warmup_then_cosine(step, total, schedule.warmup))
    for batch in _batches(len(labels), schedule, seed):
        chosen = batch.to(inputs.device)
        optimiser.zero_grad()
        loss(inputs[chosen], labels[chosen]).backward()
        optimiser.step()
        rates.step()
        on_step()


def _batches(count: int, schedule: Schedule, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(schedule.epochs):
        yield from torch.split(torch.randperm(count, generator=generator), schedule.batch_size)
