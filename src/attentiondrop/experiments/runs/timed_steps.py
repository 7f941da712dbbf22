"""Time a few steps of a run on this machine, to estimate how long the whole run takes. Nothing is kept."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError
from ..methods.parse import read_method
from ..tasks.interface import Batch
from ..train.epoch_log import Epoch
from ..train.loop import Training
from ..train.probes import probe_epochs
from ..train.seeding import own_generators
from .execute import data_for
from .job import Job

#: An epoch ends after this many batches, or after the first one that ends later than this many seconds.
STEPS, SECONDS = 20, 1.0
#: The first epoch warms up, the second one is timed.
_EPOCHS = 2


@dataclass(frozen=True)
class Pace:
    """The seconds that the parts of a run take."""

    #: Building the model, compiling, warming up.
    start: float
    #: One training step.
    step: float
    #: Scoring the whole validation part once.
    validation: float
    #: Writing the state after an epoch.
    save: float
    #: Training steps in an epoch.
    steps: int
    #: Examples in the parts that the final scores need, divided by those of the validation part.
    parts: float

    def of(self, job: Job) -> float:
        """The seconds of a whole run: epochs, measurements (counted as training steps), final scores."""
        recipe = job.settings()
        measure, training = recipe.measure, recipe.training
        probed = len(probe_epochs(job.epochs, measure.probes)) * (measure.batches + 1) * self.step
        # What is done every so many epochs is done after the last one, too.
        validated, saved = (math.ceil(job.epochs / every) for every in (training.validate_every, training.save_every))
        epochs = job.epochs * self.steps * self.step + validated * self.validation + saved * self.save
        return self.start + epochs + probed + self.parts * self.validation


def pace_of(job: Job, threads: int | None = None) -> Pace:
    """Train two epochs that end early, and time the second one. `threads` are those of a worker process."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with tempfile.TemporaryDirectory() as folder, own_generators():
            return _timed(job, Path(folder))
    finally:
        torch.set_num_threads(before)


def _timed(job: Job, folder: Path) -> Pace:
    recipe = job.settings()
    whole = data_for(recipe)
    data = _FewBatches(whole)
    # Each of them validates and saves, so that both are timed.
    settings = dataclasses.replace(
        recipe.training, epochs=_EPOCHS, average_last=1, keep_every=None, validate_every=1, save_every=1
    )
    few = dataclasses.replace(recipe, training=settings, measure=dataclasses.replace(recipe.measure, probes=0))
    begin = time.perf_counter()
    training = Training(few, read_method(job.method), job.seed, data, folder)
    ends: list[float] = []
    epochs: list[Epoch] = []
    taken: list[int] = []

    def on_epoch(epoch: Epoch) -> None:
        ends.append(time.perf_counter())
        epochs.append(epoch)
        taken.append(data.seen.train)
        data.seen.train = 0

    training.run(on_epoch)
    if len(ends) < _EPOCHS:
        raise ArgumentError(f"method {job.method}: the loss stopped being a number within {STEPS * _EPOCHS} steps")
    start = time.perf_counter()
    training.task.scores(
        training.plain, training.data, "validation", recipe.evaluation.batch_size, training.accelerator
    )
    scoring = time.perf_counter() - start
    step = epochs[-1].seconds / taken[-1]
    save = max(0.0, ends[-1] - ends[-2] - epochs[-1].seconds - scoring)
    counts = whole.counts
    return Pace(
        start=max(0.0, ends[0] - begin - taken[0] * step - scoring - save),
        step=step,
        validation=scoring / data.seen.share,
        save=save,
        steps=whole.steps(training.settings.batch_size),
        parts=1 + (counts.get("test", 0) / counts["validation"] if job.final else 0.0),
    )


@dataclass
class _Seen:
    """What has been taken of the data so far."""

    #: Training batches.
    train: int = 0
    #: The share of the part that was scored last.
    share: float = 1.0


class _FewBatches:
    """Data whose parts end early. All else is that of the data."""

    def __init__(self, data: Any, seen: _Seen | None = None) -> None:
        self._data = data
        self.seen = seen or _Seen()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def having(self, *parts: str) -> _FewBatches:
        return _FewBatches(self._data.having(*parts), self.seen)

    def to(self, device: str | torch.device) -> _FewBatches:
        return _FewBatches(self._data.to(device), self.seen)

    def train_batches(self, **arguments: Any) -> Iterator[Batch]:
        for batch in _few(self._data.train_batches(**arguments)):
            self.seen.train += 1
            yield batch

    def batches(self, part: str, batch_size: int, **arguments: Any) -> Iterator[Batch]:
        examples = 0
        for batch in _few(self._data.batches(part, batch_size, **arguments)):
            yield batch
            examples += _examples(batch)
            self.seen.share = min(1.0, examples / self._data.counts[part])


def _few(batches: Iterable[Batch]) -> Iterator[Batch]:
    start = time.perf_counter()
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number == STEPS or time.perf_counter() - start > SECONDS:
            return


def _examples(batch: Batch) -> int:
    inputs = batch.inputs.values() if isinstance(batch.inputs, dict) else [batch.inputs]
    return next(len(tensor) for tensor in inputs if isinstance(tensor, torch.Tensor))
