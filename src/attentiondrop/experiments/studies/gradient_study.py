"""The gradient variance of a run at its checkpoints, taken apart, and over training."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import ArgumentError
from ...theory import GradientVariance, gradient_variance
from ...theory.curve import Curve
from ..runs.finished_run import LoadedRun, load_run
from ..train import checkpoint
from ..train.epoch_log import BEST, LAST
from ..train.loop import initial_model

FILE, PICTURE = "variance.json", "variance.png"
#: Weights of an epoch, where a run keeps them: epoch12.safetensors.
_EPOCH = re.compile(r"epoch(\d+)\.safetensors")

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class RunVariance:
    """What was found about a run: (epoch, variance while training), (epoch, decomposition at a checkpoint)."""

    folder: Path
    method: str
    seed: int
    measured: list[tuple[int, float]]
    checkpoints: list[tuple[int, GradientVariance]]

    @property
    def curve(self) -> Curve:
        """To be drawn."""
        return Curve(f"{self.method}, seed {self.seed}", self.measured, self.checkpoints)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "method": self.method,
            "seed": self.seed,
            "while_training": [{"epoch": epoch, "gradient_variance": value} for epoch, value in self.measured],
            "checkpoints": [{"epoch": epoch, **found.to_dict()} for epoch, found in self.checkpoints],
        }


def checkpoints(folder: Path, best_epoch: int | None, last_epoch: int) -> dict[int, Path]:
    """Epoch -> weights, in order: the best, the last, and whatever else the run has kept.

    The weights before training, epoch 0, need no file: the seed gives them.
    """
    found = {int(match[1]): path for path in folder.iterdir() if (match := _EPOCH.fullmatch(path.name))}
    for epoch, name in ((best_epoch, BEST), (last_epoch, LAST)):
        if epoch is not None and (folder / name).exists():
            found[epoch] = folder / name
    return dict(sorted(found.items()))


def variance_of_run(
    folder: Path,
    *,
    examples: int = 512,
    draws: int = 2,
    method: str = "auto",
    batches: int = 48,
    device: str = "cpu",
    root: str | None = None,
    seed: int = 0,
    on_progress: OnProgress = lambda label, share: None,
) -> RunVariance:
    """Take the gradient variance apart at every checkpoint of a run, on its training part without augmentation.

    Args:
        folder: of the run.
        examples: at most so many training examples, picked at random.
        draws: of each example or mini-batch, at least 2.
        method: "samples", "batches" or "auto", as for `gradient_variance`.
        batches: with the second, how many mini-batches are drawn from all training examples.
        device, root: as for `load_run`.
        seed: of draws and choices.
        on_progress: hears what is going on and the share that is done.
    """
    on_progress("loading the run", 0.0)
    run = load_run(folder, "best", device, root)
    # Schedules have arrived at their end.
    run.applied.set_progress(1.0)
    result, training = run.record.result, run.recipe.training
    last = len(run.record.epochs)
    paths = checkpoints(folder, None if result is None else result.best_epoch, last)
    if not hasattr(run.data, "sample"):
        raise ArgumentError(f"run: expected one of a task with examples of one shape, received one of {run.task.name}")
    inputs, targets = run.data.sample(examples, seed)
    smoothing = run.method.label_smoothing or training.label_smoothing

    def loss(output: Any, targets: Tensor) -> Tensor:
        total, count = run.task.loss(output, targets, smoothing)
        return total / count

    found: list[tuple[int, GradientVariance]] = []
    for index, epoch in enumerate((0, *paths)):
        if epoch:
            checkpoint.load_into(run.model, paths[epoch], run.recipe.model.name)
        else:
            run.model.load_state_dict(_initial(run))
        found.append(
            (
                epoch,
                gradient_variance(
                    run.model,
                    inputs,
                    targets,
                    loss=loss,
                    batch_size=min(training.batch_size, len(targets)),
                    draws=draws,
                    method=method,
                    batches=batches,
                    seed=seed,
                    on_progress=_part(on_progress, f"epoch {epoch}", index, 1 + len(paths)),
                ),
            )
        )
    epochs = [(entry.epoch, entry.gradient_variance) for entry in run.record.epochs]
    measured = [(epoch, value) for epoch, value in epochs if value is not None]
    return RunVariance(folder, run.method.text, run.record.request.seed, measured, found)


def _initial(run: LoadedRun) -> dict[str, Tensor]:
    return initial_model(run.recipe, run.method, run.record.request.seed, run.data).state_dict()


def _part(on_progress: OnProgress, label: str, index: int, count: int) -> Callable[[float], None]:
    return lambda share: on_progress(label, (index + share) / count)
