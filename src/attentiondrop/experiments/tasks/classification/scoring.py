"""Evaluate a model on one part of the data: scores, reliability, robustness."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from accelerate import Accelerator
from torch import nn

from ....evaluation import RobustnessReport, robust_accuracy
from ..class_scores import judge_classes
from ..interface import Batch, Judgement
from .data.dataset import ImageData
from .settings import AttackSettings


def judge(
    model: nn.Module,
    data: ImageData,
    settings: AttackSettings,
    accelerator: Accelerator | None = None,
    on_batch: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Scores on the validation part and, if `data` holds the test part, scores, reliability and robustness on it."""
    found = judge_classes(model, data, settings.batch_size, accelerator)
    return found if found.test is None else found._replace(robustness=attack(model, data, settings, on_batch))


def attack(
    model: nn.Module, data: ImageData, settings: AttackSettings, on_batch: Callable[[int, int], None] | None = None
) -> RobustnessReport | None:
    """Accuracy under PGD attack; None if the settings name no epsilon."""
    if not settings.pgd_epsilons:
        return None
    batches = list(attacked_images(data, settings))
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


def attacked_images(data: ImageData, settings: AttackSettings) -> Iterator[Batch]:
    """The test images to attack, in [0, 1], in batches."""
    if settings.pgd_choice == "stratified":
        yield from data.some("test", settings.pgd_examples, settings.batch_size)
        return
    left = settings.pgd_examples
    for images, labels in data.batches("test", settings.batch_size, normalise=False):
        yield Batch(images[:left], labels[:left])
        left -= len(labels)
        if left <= 0:
            return
