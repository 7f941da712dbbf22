"""Ablation: train one method at each point of a grid, with the same seeds, and judge it on the validation part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ..config.schema import Recipe
from ..methods.grids import check_grids, grid_methods
from ..methods.parse import NONE, terms
from ..runs.execute import data_for, read_data_anew
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
    """Train every point of every grid, and the baseline without any method, with `seeds` seeds from
    `recipe.first_seed` on.

    `overwrite` is as in `compare`.
    """
    check_alone("ablate")
    read_data_anew()
    recipe = on_this_machine(recipe)
    found = _grids(recipe, grids)
    checksums = data_for(recipe).checksums
    chosen_seeds = recipe.seed_numbers(seeds)
    study = Ablation(command, recipe.to_dict(), chosen_seeds, found, NONE, checksums, VARIED)
    runs = seeds * len(study.all_methods())
    where = with_workers(where or Where(), recipe, runs, runs * recipe.training.epochs)
    jobs = [
        _job(recipe, method, seed, out, where, overwrite) for seed in chosen_seeds for method in study.all_methods()
    ]
    claim(out, study, jobs, overwrite)
    run_jobs(jobs, checksums, listener, where)
    return study


def jobs_of_ablation(
    recipe: Recipe, grids: Mapping[str, Any], seeds: int, out: Path, where: Where, overwrite: bool = False
) -> dict[str, list[Job]]:
    """The jobs of `ablate` by method: the baseline first, then every point of every grid."""
    recipe = on_this_machine(recipe)
    methods = [NONE, *(method for grid in _grids(recipe, grids) for method in grid.methods)]
    where = with_workers(where, recipe, seeds * len(methods), seeds * len(methods) * recipe.training.epochs)
    return {
        method: [_job(recipe, method, seed, out, where, overwrite) for seed in recipe.seed_numbers(seeds)]
        for method in methods
    }


def _grids(recipe: Recipe, grids: Mapping[str, Any]) -> list[Grid]:
    """The grids that were asked for, or those of the recipe, or those of the paper."""
    chosen: Mapping[str, Any] = grids or recipe.ablations or PAPER
    check_grids(chosen, "ablations")
    return [_grid(name, axes) for name, axes in chosen.items()]


def _job(recipe: Recipe, method: str, seed: int, out: Path, where: Where, overwrite: bool) -> Job:
    content, workers = recipe_of(VARIED, recipe.to_dict()), where.workers
    return Job(content, method, seed, str(out), VARIED, keep_weights=False, at_once=workers, overwrite=overwrite)


def _grid(name: str, axes: Any) -> Grid:
    if not isinstance(axes, Mapping):
        raise ArgumentError(f"ablation of {name}: expected fields with their values, such as p: [0.1, 0.2]")
    if not 1 <= len(axes) <= 2:
        raise ArgumentError(f"ablation of {name}: expected one or two fields to vary, received {len(axes)}")
    # A varied field belongs to the first part of the method. The text of the method fixes the other parts.
    first = terms(name)[0]
    keys = {(0, field): list(values) for field, values in axes.items()}
    for field in axes:
        if field in first.given:
            raise ArgumentError(f"ablation of {name}: {field} is varied, leave it out of the method")
    return Grid(name, {field: list(values) for field, values in axes.items()}, grid_methods(name, keys))
