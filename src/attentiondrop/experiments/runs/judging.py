"""Score the stored weights of a run: after training, and again if only the evaluation settings have changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator

from ..methods.parse import read_method
from ..tasks.interface import Data
from ..tasks.metrics import Metrics
from ..tasks.registry import find_task
from ..train import checkpoint
from ..train.accelerator import make_accelerator
from ..train.epoch_log import BEST, Epoch
from ..train.loop import initial_model
from .environment import versions
from .job import Job
from .store import Result, Run


def scores_of(job: Job, data: Data, epochs: Sequence[Epoch], accelerator: Accelerator) -> dict[str, Any]:
    """The scores of the weights that the recipe selects, on the parts that `data` holds, as fields of a `Result`."""
    recipe, checksums, method = job.settings(), data.checksums, read_method(job.method)
    # A new model with the stored weights, in float32, so that `attentiondrop evaluate` gives the same scores later.
    model = initial_model(recipe, method, job.seed, data).to(accelerator.device)
    checkpoint.load_into(model, job.weights, recipe.model.name)
    choice = epochs[method.counts_from(method.training(recipe.training).epochs) :]
    held_out = data.having(*(part for part in data.counts if part != "train")).to(accelerator.device)
    task = find_task(recipe.task)
    judged = task.judge(model, held_out, recipe.evaluation, accelerator)
    shown = task.exhibits(model, held_out, recipe.evaluation, method.attached) if job.final else None
    return {
        "best_epoch": best_epoch(task.metrics, choice) if job.weights.name == BEST else len(epochs),
        "scored": job.scored(checksums),
        "scored_with": versions(),
        **judged._asdict(),
        "exhibits": None if shown is None else shown.acting_on(recipe.training.kinds),
    }


def score_again(job: Job, run: Run, data: Data) -> Result:
    """The result of a finished run with new scores. What was measured in training stays."""
    if run.result is None:
        raise ValueError(f"{run.folder} has no result")
    accelerator = make_accelerator(job.settings().training)
    return dataclasses.replace(run.result, **scores_of(job, data, run.epochs, accelerator))


def best_epoch(metrics: Metrics, epochs: Sequence[Epoch]) -> int:
    """The epoch whose weights were kept as the best: the one with the best scores on the validation part."""
    judged = {each.epoch: each.validation for each in epochs if each.validation is not None}
    # Of equal epochs the first, as in `Best`.
    return max(judged, key=lambda epoch: metrics.epoch_merit(judged[epoch]))
