"""Ablation: train one method at each point of a grid, with the same seeds, and judge it on the validation part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ..config.schema import Recipe
from ..methods.grids import check_grids, grid_methods
from ..methods.parse import NONE, terms
from ..runs.execute import data_for
from ..runs.identity import recipe_of
from ..runs.job import Job
from ..runs.kinds import VARIED
from ..runs.pool import Listener, Where, run_jobs
from ..runs.worker_count import with_workers
from ..train.accelerator import on_this_machine
from .claiming import claim
from .compare import check_alone
from .plan import Ablation, Grid

#: The paper's ablation, used when neither the user nor the recipe names a grid.
PAPER = {"hard": {"p": [0.05, 0.1, 0.2], "k": [3, 5, 10]}, "blur": {"sigma_max": [0.1, 0.3, 0.5, 0.7, 1.0]}}


def ablate(
    recipe: Recipe,
    grids: Mapping[str, Any],
    seeds: int,
    out: Path,
    listener: Listener,
    *,
    command: str = "",
    where: Where | None = None,
    overwrite: bool = False,
) -> Ablation:
    """Train every point of every grid, and the baseline without any method, with the seeds 0 to `seeds - 1`.

    `overwrite` is as in `compare`.
    """
    check_alone("ablate")
    chosen: Mapping[str, Any] = grids or recipe.ablations or PAPER
    check_grids(chosen, "ablations")
    recipe = on_this_machine(recipe)
    found = [_grid(name, axes) for name, axes in chosen.items()]
    checksums = data_for(recipe).checksums
    study = Ablation(command, recipe.to_dict(), list(range(seeds)), found, NONE, checksums, VARIED)
    methods = [NONE, *(method for grid in found for method in grid.methods)]
    where = with_workers(where or Where(), recipe, seeds * len(methods), seeds * len(methods) * recipe.training.epochs)
    content = recipe_of(VARIED, recipe.to_dict())
    jobs = [
        Job(content, method, seed, str(out), VARIED, keep_weights=False, at_once=where.workers, overwrite=overwrite)
        for seed in range(seeds)
        for method in methods
    ]
    claim(out, study, jobs, overwrite)
    run_jobs(jobs, checksums, listener, where)
    return study


def _grid(name: str, axes: Mapping[str, list[Any]]) -> Grid:
    if not 1 <= len(axes) <= 2:
        raise ArgumentError(f"ablation of {name}: expected one or two fields to vary, received {len(axes)}")
    # A varied field belongs to the first part of the method. The text of the method fixes the other parts.
    first = terms(name)[0]
    keys = {(0, field): list(values) for field, values in axes.items()}
    for field in axes:
        if field in first.given:
            raise ArgumentError(f"ablation of {name}: {field} is varied, leave it out of the method")
    return Grid(name, {field: list(values) for field, values in axes.items()}, grid_methods(name, keys))
