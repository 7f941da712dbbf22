"""Try each kind of run on two examples before the first run, so that a setup that cannot train gives one error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...errors import ArgumentError, AttachError
from ..config.schema import Recipe
from ..failures import in_words
from ..methods.apply import Applied
from ..methods.parse import read_method, terms
from ..tasks.interface import Data, forward
from ..tasks.optional_packages import check_packages
from ..tasks.registry import find_task
from ..train.loop import initial_model
from .execute import data_for
from .job import Job

#: Normalisation over a batch needs more than one example.
_EXAMPLES = 2

#: The kinds of runs that have passed in this process. All seeds and trials of a method are of one kind.
_passed: set[tuple[str, ...]] = set()


def check_jobs(jobs: Iterable[Job], say: Callable[[str], None] = lambda line: None) -> None:
    """Build the model of every kind of job, apply its method, and do one backward pass on the CPU. Nothing is kept.

    Raises an `ArgumentError` if the model does not exist, does not fit the data or has no attention to attach to, and
    another error if a package is missing.
    Jobs whose methods differ only in their fields are one kind, so only the first of them is tried.
    `say` hears lines for people about a model that can be trained, but is likely not what they meant.
    """
    said = set[str]()
    for job in jobs:
        kind = kind_of(job)
        if kind not in _passed:
            recipe = job.settings()
            task = find_task(recipe.task)
            check_packages(task.packages(recipe.data), task.extra)  # some are used only after training
            with torch.random.fork_rng(devices=()):  # the trial runs on the CPU only
                lines = _try(recipe, job.method, data_for(recipe, job.seed))
            for line in lines:
                if line not in said:
                    said.add(line)
                    say(line)
            _passed.add(kind)


def kind_of(job: Job) -> tuple[str, ...]:
    """What jobs that differ only in seeds and in the fields of their methods have in common."""
    shared = json.dumps(
        [job.recipe.get(key) for key in ("task", "data", "model")]
        + [job.recipe["training"].get(key) for key in ("consistency_mode", "kinds")]
    )
    return (shared, *(term.name for term in terms(job.method)))


def _try(recipe: Recipe, text: str, data: Data) -> Sequence[str]:
    """Raise if it cannot be trained. Returns the warnings of its task."""
    task, method = find_task(recipe.task), read_method(text)
    model = initial_model(recipe, method, 0, data).train()
    warnings = task.warnings(model, data)
    batch = task.examples(data, _EXAMPLES)
    mode: Any = method.training(recipe.training).consistency_mode
    try:
        applied = Applied(method, model, kinds=recipe.training.kinds)
        applied.objective(task, recipe.training.label_smoothing, mode)(model, applied.batch(batch)).backward()
        with torch.no_grad():
            forward(model.eval(), batch.inputs)
    except Exception as error:
        why = in_words(error)
        if isinstance(error, AttachError):
            why += ". Choose another model, or methods that do not act on attention"
        raise ArgumentError(
            f"model {recipe.model.name} with method {text}: cannot be trained on {data.words}: {why}"
        ) from error
    return warnings
