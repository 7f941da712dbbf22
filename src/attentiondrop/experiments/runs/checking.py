"""Each kind of run, tried on two images before the first run: what cannot be trained is one error, not one a run."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

from ...errors import ArgumentError
from ..methods.apply import Applied
from ..tasks.classification.data.dataset import Data
from .execute import data_for
from ..failures import in_words
from .job import Job
from ..train.loop import initial_model
from ..methods.parse import read_method, terms
from ..config.schema import Recipe

#: Two, since normalisation over a batch needs more than one.
_IMAGES = 2

#: What passed in this process: the trials of a method, its final runs and all seeds are of one kind.
_passed: set[tuple[str, ...]] = set()


def check_jobs(jobs: Iterable[Job]) -> None:
    """Build the model of every kind of job, apply its method, and take one step on the CPU; nothing is kept of it.

    A model that does not exist, does not fit the data or has no attention to attach to raises an `ArgumentError`.
    Settings of a method beyond its name are not looked at.
    """
    for job in jobs:
        kind = _kind(job)
        if kind not in _passed:
            recipe = job.settings()
            with torch.random.fork_rng(devices=()):  # all of it happens on the CPU
                _try(recipe, job.method, data_for(recipe.data))
            _passed.add(kind)


def _kind(job: Job) -> tuple[str, ...]:
    shared = json.dumps([job.recipe[key] for key in ("data", "model")] + [job.recipe["training"]["consistency_mode"]])
    return (shared, *(term.name for term in terms(job.method)))


def _try(recipe: Recipe, text: str, data: Data) -> None:
    method = read_method(text)
    model = initial_model(recipe, method, 0, data).train()
    images = torch.zeros(_IMAGES, data.channels, data.size, data.size)
    labels = torch.arange(_IMAGES) % data.classes
    try:
        applied = Applied(method, model)
        objective = applied.objective(recipe.training.label_smoothing, recipe.training.consistency_mode)  # type: ignore[arg-type]
        objective(model, images, labels).backward()
        with torch.no_grad():
            model.eval()(images)
    except Exception as error:
        raise ArgumentError(
            f"model {recipe.model.name} with method {text}: cannot be trained on images of {data.channels} x "
            f"{data.size} x {data.size} pixels: {in_words(error)}"
        ) from error
