"""Time a few steps of a run on this machine, to estimate how long the whole run takes. Nothing is kept."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError, AttentionDropError
from ..config.schema import Recipe
from ..methods.parse import read_method
from ..tasks.interface import Batch
from ..tasks.registry import find_task
from ..train.accelerator import device_of
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
#: On a CPU, a method that is not compiled may take about this many seconds. It is looked at before each batch.
LIMIT = 10.0
#: On a CPU, steps begin with this many examples and grow by this factor, until one takes a good part of `SECONDS`: a
#: step of a large model can take minutes, and nothing can stop it. The time of such a step grows with the examples.
_EXAMPLES, _GROWTH = 2, 4


class TooSlowError(AttentionDropError):
    """A method was not timed, since it took longer than `LIMIT`."""


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


def is_timed_uncompiled(recipe: Recipe) -> bool:
    """Whether the recipe compiles, and is timed without: on a CPU, compiling takes minutes for each method."""
    settings = recipe.training
    return bool(settings.compile or settings.compile_loss) and device_of(settings) == "cpu"


def pace_of(job: Job, threads: int | None = None) -> Pace:
    """Train two epochs that end early, and time the second one. `threads` are those of a worker process.

    Raises a `TooSlowError` on a CPU, if that takes too long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with tempfile.TemporaryDirectory() as folder, own_generators():
            return _timed(job, Path(folder))
    finally:
        torch.set_num_threads(before)


def _timed(job: Job, folder: Path) -> Pace:
    recipe = job.settings()
    task, whole = find_task(recipe.task), data_for(recipe)
    seen = _Seen()
    if device_of(recipe.training) == "cpu":
        seen.end = time.perf_counter() + LIMIT
        # Batches of a task whose counts vary are made of sentences of all lengths, which need not fit into a small one.
        if not task.counts_vary:
            # (Accumulated parts share a batch evenly.)
            seen.size = recipe.training.accumulate * max(1, _EXAMPLES // recipe.training.accumulate)
    data = _FewBatches(whole, seen)
    method = read_method(job.method)
    # Each of them validates and saves, so that both are timed.
    settings = dataclasses.replace(recipe.training, average_last=1, keep_every=None, validate_every=1, save_every=1)
    # A method may have fewer epochs than it is asked for.
    asked_for = (dataclasses.replace(settings, epochs=epochs) for epochs in itertools.count(_EPOCHS))
    settings = next(one for one in asked_for if method.training(one).epochs >= _EPOCHS)
    if is_timed_uncompiled(recipe):
        settings = dataclasses.replace(settings, compile=False, compile_loss=False)
    few = dataclasses.replace(recipe, training=settings, measure=dataclasses.replace(recipe.measure, probes=0))
    begin = time.perf_counter()
    training = Training(few, method, job.seed, data, folder)
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
    began = time.perf_counter()
    training.task.scores(
        training.plain, training.data, "validation", recipe.evaluation.batch_size, training.accelerator
    )
    scoring = time.perf_counter() - began
    step = epochs[-1].seconds / taken[-1]
    save = max(0.0, ends[-1] - ends[-2] - epochs[-1].seconds - scoring)
    start = max(0.0, ends[0] - begin - taken[0] * step - scoring - save)
    counts = whole.counts
    asked = training.settings.batch_size
    larger = 1.0 if seen.size is None else task.smallest_batch(whole, asked) / task.smallest_batch(whole, seen.size)
    return Pace(
        start=start,
        step=step * larger,
        validation=scoring / data.seen.share,
        save=save,
        steps=whole.steps(asked),
        parts=1 + (counts.get("test", 0) / counts["validation"] if job.final else 0.0),
    )


@dataclass
class _Seen:
    """What has been taken of the data so far, and how much may be taken."""

    #: Training batches.
    train: int = 0
    #: The share of the part that was scored last.
    share: float = 1.0
    #: When to stop altogether.
    end: float = math.inf
    #: The examples of a batch; None: as many as are asked for.
    size: int | None = None

    def check_time(self) -> None:
        """Raise if the time is over."""
        if time.perf_counter() > self.end:
            raise TooSlowError(f"not timed: it takes longer than {LIMIT:g} s")


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

    def train_batches(self, *, epoch: int, batch_size: int, **arguments: Any) -> Iterator[Batch]:
        seen = self.seen

        def batches(size: int) -> Iterator[Batch]:
            return self._few(self._data.train_batches(epoch=epoch, batch_size=size, **arguments))

        found = batches(seen.size or batch_size)
        if seen.size is not None and epoch == 0:
            found = self._growing(batches, seen.size, batch_size)
        for batch in found:
            seen.train += 1
            yield batch

    def batches(self, part: str, batch_size: int, **arguments: Any) -> Iterator[Batch]:
        size = min(batch_size, self.seen.size or batch_size)
        examples = 0
        for batch in self._few(self._data.batches(part, size, **arguments)):
            yield batch
            examples += _examples(batch)
            self.seen.share = min(1.0, examples / self._data.counts[part])

    def _few(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        start = time.perf_counter()
        for number, batch in enumerate(batches, start=1):
            self.seen.check_time()
            yield batch
            if number == STEPS or time.perf_counter() - start > SECONDS:
                return

    def _growing(self, batches: Callable[[int], Iterator[Batch]], size: int, most: int) -> Iterator[Batch]:
        """Batches of more and more examples. The last one has the size of all that follow."""
        size = min(size, most)
        yield next(batches(size))  # the first step takes longer
        while True:
            self.seen.size = size
            batch = next(batches(size))
            start = time.perf_counter()
            yield batch
            if size == most or time.perf_counter() - start > SECONDS / 2:
                return
            size = min(_GROWTH * size, most)


def _examples(batch: Batch) -> int:
    inputs = batch.inputs.values() if isinstance(batch.inputs, dict) else [batch.inputs]
    return next(len(tensor) for tensor in inputs if isinstance(tensor, torch.Tensor))
