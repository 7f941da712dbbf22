"""How good a model is on one part of the data: predictions, scores, reliability, robustness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..evaluation import reliability, robust_accuracy, scores
from .data import Data
from .recipe import EvaluationSettings
from .record import Reliability, Robustness, Scores


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in eval mode, and back as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def predict(
    model: nn.Module, data: Data, part: str, batch_size: int, rank: int = 0, world: int = 1
) -> tuple[Tensor, Tensor]:
    """Logits in float32 and labels of one process's share of a part, on the CPU."""
    # What was compiled was compiled for training: another mode and batch size would be compiled anew.
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    call = model.forward if compiled else model
    with evaluating(model):
        pairs = [
            (call(images).float().cpu(), labels.cpu())
            for images, labels in data.batches(part, batch_size, rank=rank, world=world)
        ]
    return torch.cat([logits for logits, _ in pairs]), torch.cat([labels for _, labels in pairs])


def score(logits: Tensor, labels: Tensor) -> Scores:
    """Accuracy, NLL, ECE, Brier, top-5."""
    return Scores(**dataclasses.asdict(scores(logits, labels)))


def reliability_of(logits: Tensor, labels: Tensor) -> Reliability:
    """The reliability diagram."""
    return Reliability(**dataclasses.asdict(reliability(logits, labels)))


def attack(
    model: nn.Module, data: Data, settings: EvaluationSettings, on_batch: Callable[[int, int], None] | None = None
) -> Robustness | None:
    """Accuracy under PGD; None where nothing is to be attacked."""
    if not settings.pgd_epsilons:
        return None
    batches = list(_first(data, settings))
    device = batches[0][0].device
    report = robust_accuracy(
        model,
        batches,
        epsilons=settings.pgd_epsilons,
        norm=settings.pgd_norm,
        steps=settings.pgd_steps,
        restarts=settings.pgd_restarts,
        normalise=data.normalise,
        generator=torch.Generator(device).manual_seed(0),
        on_batch=on_batch,
    )
    return Robustness(**dataclasses.asdict(report))


def _first(data: Data, settings: EvaluationSettings) -> Iterator[tuple[Tensor, Tensor]]:
    left = settings.pgd_examples
    for images, labels in data.batches("test", settings.batch_size, normalise=False):
        yield images[:left], labels[:left]
        left -= len(labels)
        if left <= 0:
            return
