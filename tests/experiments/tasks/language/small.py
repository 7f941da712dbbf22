"""The toy recipe, smaller, and models of it."""

from __future__ import annotations

from pathlib import Path

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.train.loop import Training

SMALL = [
    "data.sentences=60",
    "data.block=16",
    "model.width=16",
    "training.epochs=2",
    "training.batch_size=16",
    "training.device=cpu",
    "measure.probes=0",
]


def recipe_of(*changes: str) -> Recipe:
    return read_recipe("toy-language", None, [*SMALL, *changes])


def data_of(recipe: Recipe):
    return find_task(recipe.task).load_data(recipe.data)


def training(folder: Path, method: str = "none", *changes: str, kind: type[Training] = Training) -> Training:
    recipe = recipe_of(*changes)
    folder.mkdir(exist_ok=True)
    return kind(recipe, read_method(method), 0, data_of(recipe), folder)
