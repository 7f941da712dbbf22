"""A time at which all runs should have ended: which runs can still be started."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from typing import Any

from ..methods.parse import read_method
from ..methods.passes import passes
from .job import Job
from .store import Result

#: Runs of equal work differ, above all where several share a machine: a run may take this much longer than expected.
ROOM = 1.1


class Deadline:
    """Refuses runs that would end after `until`, going by the time of the runs that have ended.

    `until` is in seconds as `time.time()` counts them. As long as no run has ended, nothing is known: then every run
    may start before `until`.

    `pace` holds the seconds of a unit of work, as its `value`; 0 if they are not known. It is in memory that processes
    can share: the parent learns, and its workers ask.
    """

    def __init__(self, until: float = math.inf, pace: Any = None) -> None:
        self.until = until
        self.pace = multiprocessing.get_context("spawn").RawValue("d", 0.0) if pace is None else pace
        self._known: list[float] = []

    def learn(self, job: Job, result: Result) -> None:
        """Take the time of a run that was trained just now."""
        if result.status == "finished":
            self._known.append(result.seconds / work(job))
            self.pace.value = statistics.median(self._known)

    def allows(self, job: Job) -> bool:
        """Whether a run may start now."""
        if math.isinf(self.until):
            return True
        pace = float(self.pace.value)
        return time.time() + ROOM * pace * work(job) <= self.until


def work(job: Job) -> float:
    """The work of a run, in passes over its training part: a method may have more epochs, or several views."""
    return max(1, job.settings().training.epochs) * passes(read_method(job.method))
