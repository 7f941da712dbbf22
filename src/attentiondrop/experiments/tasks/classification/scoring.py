"""Evaluate a model on one part of the data: predictions, scores, reliability, robustness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from ....evaluation import RobustnessReport, reliability, robust_accuracy, scores
from ..eval_mode import evaluating
from ..interface import Judgement
from .data.dataset import ImageData
from .settings import AttackSettings

#: Logits and labels, on the CPU.
Predictions = tuple[Tensor, Tensor]


@torch.no_grad()
def predict(
    model: nn.Module, data: ImageData, part: str, batch_size: int, rank: int = 0, world: int = 1
) -> Predictions:
    """Logits in float32 and labels on the CPU, for the share of a part that belongs to one process."""
    # A model is compiled for training. In eval mode or with another batch size it would be compiled again.
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    call = model.forward if compiled else model
    with evaluating(model):
        pairs = [
            (call(images).float().cpu(), labels.cpu())
            for images, labels in data.batches(part, batch_size, rank=rank, world=world)
        ]
    return torch.cat([logits for logits, _ in pairs]), torch.cat([labels for _, labels in pairs])


def predict_all(
    model: nn.Module, data: ImageData, part: str, batch_size: int, accelerator: Accelerator | None
) -> Predictions:
    """Logits and labels of a whole part, gathered from all processes."""
    if accelerator is None or accelerator.num_processes == 1:
        return predict(model, data, part, batch_size)
    share = predict(model, data, part, batch_size, accelerator.process_index, accelerator.num_processes)
    shares = gather_object([share])
    return torch.cat([logits for logits, _ in shares]), torch.cat([labels for _, labels in shares])


def scores_of_part(
    model: nn.Module, data: ImageData, part: str, batch_size: int, accelerator: Accelerator | None
) -> dict[str, float]:
    """Name of the metric -> value. Top-5 is there only if there are more than five classes."""
    return _by_name(*predict_all(model, data, part, batch_size, accelerator))


def judge(
    model: nn.Module,
    data: ImageData,
    settings: AttackSettings,
    accelerator: Accelerator | None = None,
    on_batch: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Scores on the validation part and, if `data` holds the test part, scores, reliability and robustness on it."""
    validation = scores_of_part(model, data, "validation", settings.batch_size, accelerator)
    if "test" not in data.counts:
        return Judgement(validation)
    logits, labels = predict_all(model, data, "test", settings.batch_size, accelerator)
    return Judgement(
        validation, _by_name(logits, labels), reliability(logits, labels), attack(model, data, settings, on_batch)
    )


def _by_name(logits: Tensor, labels: Tensor) -> dict[str, float]:
    found = dataclasses.asdict(scores(logits, labels))
    return {name: value for name, value in found.items() if value is not None}


def attack(
    model: nn.Module, data: ImageData, settings: AttackSettings, on_batch: Callable[[int, int], None] | None = None
) -> RobustnessReport | None:
    """Accuracy under PGD attack; None if the settings name no epsilon."""
    if not settings.pgd_epsilons:
        return None
    batches = list(_first(data, settings))
    device = batches[0][0].device
    return robust_accuracy(
        model,
        batches,
        epsilons=settings.pgd_epsilons,
        norm=settings.pgd_norm,  # type: ignore[arg-type]
        steps=settings.pgd_steps,
        restarts=settings.pgd_restarts,
        normalise=data.normalise,
        generator=torch.Generator(device).manual_seed(0),
        on_batch=on_batch,
    )


def _first(data: ImageData, settings: AttackSettings) -> Iterator[tuple[Tensor, Tensor]]:
    left = settings.pgd_examples
    for images, labels in data.batches("test", settings.batch_size, normalise=False):
        yield images[:left], labels[:left]
        left -= len(labels)
        if left <= 0:
            return
