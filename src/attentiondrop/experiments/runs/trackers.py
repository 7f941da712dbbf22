"""Also send the numbers of a run to TensorBoard or Weights & Biases, for users who want to watch it there."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any

from accelerate.tracking import TensorBoardTracker, WandBTracker

from ..train.epoch_log import Epoch
from .store import Result

if TYPE_CHECKING:
    from .job import Job

TRACKERS = ("tensorboard", "wandb")


class Trackers:
    """The trackers of one run. Does nothing if there are none, or outside the main process."""

    def __init__(self, job: Job, main: bool) -> None:
        self._names = job.trackers if main else ()
        self._job = job
        self._open: list[Any] = []

    def __enter__(self) -> Trackers:
        for name in self._names:
            if name == "tensorboard":
                tracker: Any = TensorBoardTracker(".", logging_dir=str(self._job.folder / "tensorboard"))
            else:
                tracker = WandBTracker("attentiondrop", name=self._job.label, dir=str(self._job.folder), resume="allow")
            self._open.append(tracker)
            tracker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._open:
            tracker.finish()

    def epoch(self, epoch: Epoch) -> None:
        """Log one epoch."""
        values = {key: value for key, value in dataclasses.asdict(epoch).items() if value is not None}
        scores = {f"validation_{name}": value for name, value in (values.pop("validation", None) or {}).items()}
        step = values.pop("epoch")
        self._log(values | scores, step)

    def result(self, result: Result) -> None:
        """Log the test scores."""
        if result.test is not None:
            self._log({f"test_{name}": value for name, value in result.test.items()}, step=result.epochs)

    def _log(self, values: dict[str, Any], step: int) -> None:
        for tracker in self._open:
            tracker.log(values, step=step)
