"""One run: a method and a seed under a recipe, trained, evaluated and described."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .data.dataset import Dataset
from .environment import environment
from .evaluate import evaluate
from .methods import Method
from .models import vit
from .recipe import Recipe
from .record import RunResult
from .train import train


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe with the architecture it trains, as it is stored with a run."""
    return recipe.to_dict() | {"model": dict(vit.SHAPE)}


def run(method: Method, seed: int, recipe: Recipe, data: Dataset, on_epoch: Callable[[int], None]) -> RunResult:
    """Train and evaluate; `on_epoch` hears how many epochs are done. A diverged run is a result too."""
    trained = train(method, seed, recipe, data, on_epoch)
    metrics = None if trained.diverged else evaluate(trained.model, data)
    return RunResult(
        method=method.text,
        seed=seed,
        recipe=resolved(recipe),
        data_checksum=data.checksum,
        environment=environment(recipe.device),
        status="diverged" if metrics is None else "finished",
        train_loss=[loss if math.isfinite(loss) else None for loss in trained.losses],
        metrics=metrics,
        seconds=trained.seconds,
    )
