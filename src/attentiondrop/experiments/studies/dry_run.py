"""What a command would run, and how long that would take. Nothing is trained to the end, and nothing is written."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..methods.parse import terms
from ..runs.checking import check_jobs
from ..runs.environment import environment
from ..runs.execute import data_for
from ..runs.job import Job, Standing, check_erasing, standing
from ..runs.store import AT_ONCE
from ..runs.timed_steps import Pace, pace_of

#: What must be equal for the time of an earlier run to count: the machine, torch, and how many runs shared the machine.
_SAME = ("device", "platform", "torch", AT_ONCE)


@dataclass(frozen=True)
class Line:
    """One line of the plan: runs of one method that differ in their seeds, or in the settings that tuning tries."""

    label: str
    runs: int
    #: Runs that are finished already.
    finished: int
    #: Finished runs that are only scored again, since the evaluation settings have changed.
    scored_again: int
    #: Epochs of one run.
    epochs: int
    #: Seconds of one run that is left; None if nothing is left.
    seconds: float | None
    #: Whether the seconds come from finished runs; otherwise from a few timed steps.
    from_records: bool = False


@dataclass(frozen=True)
class Forecast:
    """All lines of a plan, and the seconds that the command takes; None on a cluster of unknown size."""

    lines: list[Line]
    seconds: float | None
    #: How many runs are done at once on this machine.
    workers: int = 1

    @property
    def runs_left(self) -> int:
        """How many runs are still to be trained."""
        return sum(line.runs - line.finished - line.scored_again for line in self.lines)


def forecast(
    groups: Mapping[str, Sequence[Job]],
    on_cluster: bool = False,
    on_method: Callable[[str, int], None] = lambda label, done: None,
) -> Forecast:
    """The plan for jobs, by label, in the order in which they would run.

    A method that has finished runs in the folder, on this machine and with as many workers, takes as long as these.
    Any other method is timed here for a few steps.

    Raises what the command would raise before its first run: a model that cannot be built, a run that would be erased.

    Args:
        groups: label -> jobs.
        on_cluster: whether the jobs would run on a cluster instead of this machine.
        on_method: hears the label that is looked at, and how many labels are done.
    """
    jobs = list(dict.fromkeys(job for group in groups.values() for job in group))
    recipe = jobs[0].settings()
    checksums = data_for(recipe).checksums
    found = {job: standing(job, checksums) for job in jobs}
    check_erasing(jobs, found)
    check_jobs([job for job in jobs if found[job].todo == "train"])
    workers = jobs[0].at_once
    clock = _Clock(workers, recipe.training.device)
    lines, left, known = [], [], set[Job]()
    for done, (label, group) in enumerate(groups.items()):
        on_method(label, done)
        own = [job for job in dict.fromkeys(group) if job not in known]
        known |= set(own)
        line, seconds = _line(label, own, found, clock)
        lines.append(line)
        left += seconds
    on_method("", len(groups))
    return Forecast(lines, None if on_cluster else _shared(left, workers), workers)


def _line(label: str, jobs: Sequence[Job], found: Mapping[Job, Standing], clock: _Clock) -> tuple[Line, list[float]]:
    todo = [job for job in jobs if found[job].todo == "train"]
    again = sum(found[job].todo == "score" for job in jobs)
    epochs = jobs[0].epochs if jobs else 0
    recorded = clock.recorded(jobs, found) if todo else None
    seconds = [clock.measured(job) if recorded is None else recorded * job.epochs for job in todo]
    mean = fmean(seconds) if seconds else None
    finished = len(jobs) - len(todo) - again
    return Line(label, len(jobs), finished, again, epochs, mean, recorded is not None), seconds


class _Clock:
    """Says how long a run takes: from finished runs, or from a few steps."""

    def __init__(self, workers: int, device: str) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None
        self._here = environment(device, workers)
        self._paces: dict[tuple[str, ...], Pace] = {}

    def recorded(self, jobs: Sequence[Job], found: Mapping[Job, Standing]) -> float | None:
        """The seconds of an epoch, everything included, in finished runs of the same kind; None without any."""
        each = []
        for job in jobs:
            run, result = found[job].run, found[job].result
            same = run is not None and all(run.environment.get(key) == self._here.get(key) for key in _SAME)
            if same and result is not None and result.status == "finished" and result.epochs:
                each.append(result.seconds / result.epochs)
        return fmean(each) if each else None

    def measured(self, job: Job) -> float:
        """The seconds of a run. Settings of one method share a measurement, as do tuning and final runs."""
        kind = tuple(term.name for term in terms(job.method))
        if kind not in self._paces:
            self._paces[kind] = pace_of(job, self._threads)
        return self._paces[kind].of(job)


def _shared(seconds: Sequence[float], workers: int) -> float:
    """The time until the last run ends, if each worker takes the next run as soon as it is free."""
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
