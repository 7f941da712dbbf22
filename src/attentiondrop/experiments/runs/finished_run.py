"""A finished run read back: its model, method and data, checked to be those it was made with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from ...errors import ArgumentError, AttentionDropError, bad_argument
from ..train import checkpoint
from ..methods.apply import Applied
from ..tasks.classification.data import load_data
from ..tasks.classification.data.dataset import Data
from ..files.whole_files import damaged
from ..train.loop import initial_model
from ..methods.parse import Method, read_method
from ..config.schema import Recipe
from .store import BEST, LAST, REQUEST, Run, read_run
from ..files.typed_settings import build_settings


@dataclass(frozen=True)
class LoadedRun:
    """A run: what is on disk, and what it stands for. `model` perturbs in train mode and is plain in eval mode."""

    record: Run
    recipe: Recipe
    method: Method
    model: nn.Module
    applied: Applied
    data: Data


def load_run(
    folder: Path, weights: Literal["best", "last"] = "best", device: str = "cpu", root: str | None = None
) -> LoadedRun:
    """Load the run in `folder`, in eval mode.

    Args:
        folder: as `attentiondrop train` and `compare` make them.
        weights: of the best epoch on the validation part, or the last.
        device: where to.
        root: where the data is, for data sets that are read from a folder or file: a run does not store paths.
    """
    run = read_run(folder)
    if run is None:
        raise ArgumentError(f"{folder}: expected the folder of a run, with a run.json")
    path = folder / {"best": BEST, "last": LAST}[weights]
    if run.result is None or not path.exists():
        why = "the run is not finished" if run.result is None else f"the run has no {path.name}"
        raise bad_argument("run", "one that is finished and has its weights", f"{folder}, where {why}")
    try:
        recipe = build_settings(Recipe, run.request.recipe)
        method = read_method(run.request.method)
    except AttentionDropError as error:
        raise damaged(folder / REQUEST, error) from error
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=root))
    data = load_data(recipe.data)
    changed = [part for part, checksum in run.request.checksums.items() if data.checksums.get(part) != checksum]
    if changed:
        raise ArgumentError(f"data: expected what {folder} was made with, found other {' and '.join(changed)} data")
    model = initial_model(recipe, method, run.request.seed, data).to(device)
    checkpoint.load_into(model, path, recipe.model.name)
    applied = Applied(method, model)
    return LoadedRun(run, recipe, method, model.eval(), applied, data.to(device))
