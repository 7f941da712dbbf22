"""Predictions and scores of models whose examples each have one class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from ...evaluation import fit_temperature, reliability, scores
from .eval_mode import evaluating
from .interface import Judgement, forward

#: Logits and labels, on the CPU.
Predictions = tuple[Tensor, Tensor]


Pick = Callable[[Any], Tensor]
#: The label of examples that only fill a batch up.
FILLING = -100


def scores_of_part(
    model: nn.Module,
    data: Any,
    part: str,
    batch_size: int,
    accelerator: Accelerator | None,
    pick: Pick = lambda output: output,
) -> dict[str, float]:
    """Name of the metric -> value. Top-5 is there only if there are more than five classes.

    `pick` takes the logits out of the output of the model.
    """
    return scores_of(*predict_all(model, data, part, batch_size, accelerator, pick))


def scores_of(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The same for predictions."""
    found = dataclasses.asdict(scores(logits, labels))
    return {name: value for name, value in found.items() if value is not None}


def judge_classes(
    model: nn.Module,
    data: Any,
    batch_size: int,
    accelerator: Accelerator | None,
    pick: Pick = lambda output: output,
) -> Judgement:
    """Scores on the validation part and, if `data` holds the test part, scores and reliability on it.

    Test scores have some after temperature scaling, too. The validation part fits the temperature, so its own would
    look better than they are.
    """
    chosen_by = predict_all(model, data, "validation", batch_size, accelerator, pick)
    validation = scores_of(*chosen_by)
    if "test" not in data.counts:
        return Judgement(validation)
    logits, labels = predict_all(model, data, "test", batch_size, accelerator, pick)
    test = scores_of(logits, labels) | scaled_scores(logits, labels, fit_temperature(*chosen_by))
    return Judgement(validation, test, reliability(logits, labels))


def scaled_scores(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """What a temperature changes: the likelihood and the calibration error. The accuracy stays."""
    found = scores(logits / temperature, labels)
    return {"nll_scaled": found.nll, "ece_scaled": found.ece, "temperature": temperature}


def predict_all(
    model: nn.Module,
    data: Any,
    part: str,
    batch_size: int,
    accelerator: Accelerator | None,
    pick: Pick = lambda output: output,
) -> Predictions:
    """Logits in float32 and labels of a whole part, on the CPU, gathered from all processes."""
    if accelerator is None or accelerator.num_processes == 1:
        return _predict(model, data, part, batch_size, pick, 0, 1)
    share = _predict(model, data, part, batch_size, pick, accelerator.process_index, accelerator.num_processes)
    shares = gather_object([share])
    return torch.cat([logits for logits, _ in shares]), torch.cat([labels for _, labels in shares])


@torch.no_grad()
def _predict(model: nn.Module, data: Any, part: str, batch_size: int, pick: Pick, rank: int, world: int) -> Predictions:
    """The share of one process."""
    # A model is compiled for training. In eval mode or with another batch size it would be compiled again.
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    call = model.forward if compiled else model
    with evaluating(model):
        pairs = [
            (pick(forward(call, inputs)).float().cpu(), labels.cpu())
            for inputs, labels in data.batches(part, batch_size, rank=rank, world=world)
        ]
    logits, labels = (torch.cat(each) for each in zip(*pairs, strict=True))
    return logits[labels != FILLING], labels[labels != FILLING]
