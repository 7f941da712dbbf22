"""The gradient variance of a run: over training, and split into its causes at each checkpoint."""

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
from ...validation import integer
from ..runs.finished_run import LoadedRun, load_rates, load_run
from ..tasks.interface import ExampleData
from ..train import checkpoint
from ..train.epoch_log import BEST, LAST
from ..train.loop import initial_model

FILE, PICTURE = "variance.json", "variance.png"
#: Weights of an epoch that `training.keep_every` kept, such as epoch12.safetensors.
_EPOCH = re.compile(r"epoch(\d+)\.safetensors")

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class RunVariance:
    """What was found: `measured` has (epoch, variance in training), `checkpoints` has (epoch, decomposition)."""

    folder: Path
    method: str
    seed: int
    measured: list[tuple[int, float]]
    checkpoints: list[tuple[int, GradientVariance]]

    @property
    def curve(self) -> Curve:
        """The curve to draw."""
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
    """Epoch -> file of weights, in order of epochs: the best, the last, and all others that the run has kept.

    Epoch 0, before training, has no file: the seed gives its weights.
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
    """Split the gradient variance at every checkpoint of a run, on its training part without augmentation.

    Args:
        folder: the folder of the run.
        examples: use at most this many training examples, picked at random.
        draws: how many perturbed passes for each example or mini-batch, at least 2.
        method: "samples", "batches" or "auto", as for `gradient_variance`.
        batches: for method "batches", how many mini-batches are drawn from the examples.
        device, root: as for `load_run`.
        seed: for the draws and for the choice of examples.
        on_progress: called with a label and the share that is done.
    """
    examples, seed = integer("examples", examples, minimum=1), integer("seed", seed, minimum=0)
    on_progress("loading the run", 0.0)
    run = load_run(folder, "best", device, root)
    start = run.applied.state_dict()
    result, training = run.record.result, run.recipe.training
    last = len(run.record.epochs)
    paths = checkpoints(folder, None if result is None else result.best_epoch, last)
    if not isinstance(run.data, ExampleData):
        raise ArgumentError(
            f"run: expected one of a task with examples in one tensor, such as images, received one of {run.task.name}"
        )
    inputs, targets = run.data.sample(examples, seed)
    smoothing = run.method.smoothing(training.label_smoothing)

    def loss(output: Any, targets: Tensor) -> Tensor:
        total, count = run.task.loss(output, targets, smoothing)
        return total / count

    found: list[tuple[int, GradientVariance]] = []
    for index, epoch in enumerate((0, *paths)):
        if epoch:
            checkpoint.load_into(run.model, paths[epoch], run.recipe.model.name)
            load_rates(run.applied, paths[epoch])
        else:
            run.model.load_state_dict(_initial(run))
            run.applied.load_state_dict(start)
            run.applied.set_progress(1.0)  # use the rates that schedules end with
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
