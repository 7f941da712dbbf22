"""The stored weights of a run, scored: at the end of its training, and again when only the evaluation has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator

from ..train import checkpoint
from ..tasks.classification.data.dataset import Data
from .environment import versions
from .job import Job
from ..train.accelerator import make_accelerator
from ..train.loop import initial_model
from ..methods.parse import read_method
from .store import BEST, Epoch, Result, Run
from ..tasks.classification.scoring import judge


def scores_of(job: Job, data: Data, epochs: Sequence[Epoch], accelerator: Accelerator) -> dict[str, Any]:
    """How good the weights are that the recipe selects, as fields of a `Result`, on the parts that `data` holds."""
    recipe, checksums = job.settings(), data.checksums
    # A new model with the stored weights, in float32: what `evaluate` finds later.
    model = initial_model(recipe, read_method(job.method), job.seed, data).to(accelerator.device)
    checkpoint.load_into(model, job.weights, recipe.model.name)
    held_out = data.having(*(part for part in data.counts if part != "train")).to(accelerator.device)
    return {
        "best_epoch": best_epoch(epochs) if job.weights.name == BEST else len(epochs),
        "scored": job.scored(checksums),
        "scored_with": versions(),
        **judge(model, held_out, recipe.evaluation, accelerator),
    }


def score_again(job: Job, run: Run, data: Data) -> Result:
    """The result of a finished run with new scores; what was measured in training stays."""
    if run.result is None:
        raise ValueError(f"{run.folder} has no result")
    accelerator = make_accelerator(job.settings().training)
    return dataclasses.replace(run.result, **scores_of(job, data, run.epochs, accelerator))


def best_epoch(epochs: Sequence[Epoch]) -> int:
    """The epoch whose weights were kept as the best ones: those with the best scores on the validation part."""
    judged = [each for each in epochs if each.validation_accuracy is not None and each.validation_nll is not None]
    # The first of equals, as `Best` has it.
    return max(judged, key=lambda each: (each.validation_accuracy, -each.validation_nll)).epoch  # type: ignore[operator]
