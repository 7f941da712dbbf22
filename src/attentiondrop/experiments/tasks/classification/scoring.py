"""How good a model is on one part of the data: predictions, scores, reliability, robustness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from ....evaluation import RobustnessReport, reliability, robust_accuracy, scores
from ...config.schema import EvaluationSettings
from .data.dataset import Data

#: Logits and labels, on the CPU.
Predictions = tuple[Tensor, Tensor]


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
def predict(model: nn.Module, data: Data, part: str, batch_size: int, rank: int = 0, world: int = 1) -> Predictions:
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


def predict_all(
    model: nn.Module, data: Data, part: str, batch_size: int, accelerator: Accelerator | None
) -> Predictions:
    """Logits and labels of a whole part, its shares gathered from all processes."""
    if accelerator is None or accelerator.num_processes == 1:
        return predict(model, data, part, batch_size)
    share = predict(model, data, part, batch_size, accelerator.process_index, accelerator.num_processes)
    shares = gather_object([share])
    return torch.cat([logits for logits, _ in shares]), torch.cat([labels for _, labels in shares])


def judge(
    model: nn.Module,
    data: Data,
    settings: EvaluationSettings,
    accelerator: Accelerator | None = None,
    on_batch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The final word on a model, as fields of a `Result`: its scores on the validation part of `data` and, only if
    `data` holds the test part, scores, reliability and robustness there.
    """
    found: dict[str, Any] = {
        "validation": scores(*predict_all(model, data, "validation", settings.batch_size, accelerator))
    }
    if "test" not in data.counts:
        return found
    logits, labels = predict_all(model, data, "test", settings.batch_size, accelerator)
    return found | {
        "test": scores(logits, labels),
        "reliability": reliability(logits, labels),
        "robustness": attack(model, data, settings, on_batch),
    }


def attack(
    model: nn.Module, data: Data, settings: EvaluationSettings, on_batch: Callable[[int, int], None] | None = None
) -> RobustnessReport | None:
    """Accuracy under PGD; None where nothing is to be attacked."""
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


def _first(data: Data, settings: EvaluationSettings) -> Iterator[tuple[Tensor, Tensor]]:
    left = settings.pgd_examples
    for images, labels in data.batches("test", settings.batch_size, normalise=False):
        yield images[:left], labels[:left]
        left -= len(labels)
        if left <= 0:
            return
