"""How many runs at once suit a study whose user does not say."""

from __future__ import annotations

import dataclasses
import os

import torch

from ..config.schema import Recipe
from ..train.accelerator import device_of
from .execute import data_for
from .pool import Where

#: Starting workers takes some seconds. A study of fewer steps of training is done before that pays.
_MANY_STEPS = 2000
#: A worker needs less memory than this, unless the model is large.
_MEMORY = 4 * 2**30


def with_workers(where: Where, recipe: Recipe, runs: int, epochs: int) -> Where:
    """`where`, with a suitable number of workers if it names none. The `runs` of the study take `epochs` together."""
    return where if where.workers else dataclasses.replace(where, workers=suitable_workers(recipe, runs, epochs))


def suitable_workers(recipe: Recipe, runs: int, epochs: int) -> int:
    """On a CPU one for each core that torch uses, if the study takes many steps; otherwise one.

    A run with one core is nearly as fast as a run with several, because most of its operations are small. On an
    accelerator, how many runs fit depends on the model, so there the user decides.
    """
    if device_of(recipe.training) != "cpu":
        return 1
    if epochs * data_for(recipe).steps(recipe.training.batch_size) < _MANY_STEPS:
        return 1
    return max(1, min(runs, torch.get_num_threads(), _memory() // _MEMORY))


def _memory() -> int:
    """The memory of this machine in bytes; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
