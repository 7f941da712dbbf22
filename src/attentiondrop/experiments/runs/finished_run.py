"""Load a finished run: its model, method and data. The data must be the data that the run was made with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import ArgumentError, AttentionDropError, bad_argument
from ...validation import one_of
from ..config.schema import Recipe, build_recipe
from ..files.whole_files import damaged
from ..methods.apply import Applied
from ..methods.parse import Method, read_method
from ..tasks.interface import Task
from ..tasks.registry import find_task
from ..train import checkpoint
from ..train.epoch_log import BEST, LAST, rates_of
from ..train.loop import initial_model
from .folders import run_folders
from .kinds import FINAL
from .store import REQUEST, Run, read_run, scored_by


@dataclass(frozen=True)
class LoadedRun:
    """A run: its record, and the objects built from it. `model` perturbs in train mode and is plain in eval mode."""

    record: Run
    recipe: Recipe
    task: Task
    method: Method
    model: nn.Module
    applied: Applied
    data: Any
    #: The file of the weights.
    weights: Path


#: What `load_run` may load, and its file.
_WEIGHTS = {"best": BEST, "last": LAST}
#: How many runs an error names.
_NAMED = 8


def find_run(folder: Path) -> Path:
    """`folder`, or the only run in it if it is the folder of a study, such as the --out of `train`."""
    if (folder / REQUEST).exists():
        return folder
    inside = [str(path) for kind, path in run_folders(folder) if kind == FINAL]
    if len(inside) == 1:
        return Path(inside[0])
    if not inside:
        raise ArgumentError(f"{folder}: expected the folder of a run, with a run.json")
    more = [f"and {len(inside) - _NAMED} more"] if len(inside) > _NAMED else []
    raise ArgumentError(f"{folder}: expected one run, it has {len(inside)}: {', '.join([*inside[:_NAMED], *more])}")


def load_run(folder: Path, weights: str | None = "best", device: str = "cpu", root: str | None = None) -> LoadedRun:
    """Load the run in `folder`, in eval mode.

    Args:
        folder: the folder of a run that `attentiondrop train` or `compare` made.
        weights: "best" (those of the best epoch on the validation part) or "last" (those of the last epoch). None:
            those that the run was tested with, as `training.select` of its recipe says.
        device: where to put model and data.
        root: the folder or file of the data, for data sets that need one: a run does not store paths.
    """
    run = read_run(folder)
    if run is None:
        raise ArgumentError(f"{folder}: expected the folder of a run, with a run.json")
    weights = tested_weights(run) if weights is None else weights
    one_of("weights", weights, tuple(_WEIGHTS))
    path = folder / _WEIGHTS[weights]
    if run.result is None or not path.exists():
        why = "the run is not finished" if run.result is None else f"the run has no {path.name}"
        raise bad_argument("run", "one that is finished and has its weights", f"{folder}, where {why}")
    try:
        recipe = build_recipe(run.request.recipe)
        method = read_method(run.request.method)
    except AttentionDropError as error:
        raise damaged(folder / REQUEST, error) from error
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=root))
    task = find_task(recipe.task)
    data = task.load_data(recipe.data.for_seed(run.request.seed))
    changed = [part for part, checksum in run.request.checksums.items() if data.checksums.get(part) != checksum]
    if changed:
        raise ArgumentError(f"data: expected what {folder} was made with, found other {' and '.join(changed)} data")
    model = initial_model(recipe, method, run.request.seed, data).to(device)
    checkpoint.load_into(model, path, recipe.model.name)
    applied = Applied(method, model, kinds=recipe.training.kinds)
    return LoadedRun(run, recipe, task, method, model.eval(), applied, data.to(device), path)


def tested_weights(run: Run) -> str:
    """The weights that a run was tested with: "best" or "last"."""
    found: str = scored_by(run).get("training", {}).get("select", "best")
    return found


def load_rates(applied: Applied, weights: Path) -> None:
    """Give a method the rates that it had with these weights, at the end of training for all that is scheduled."""
    state = checkpoint.load_state(rates_of(weights))
    if state is not None:
        applied.load_state_dict(state)
    elif applied.has_own_rates():
        raise ArgumentError(
            f"{weights.parent}: expected {rates_of(weights).name}, with the rates that the run has learned or adapted; "
            "older versions did not write it"
        )
    applied.set_progress(1.0)
