"""What a command would run, and how long that would take. Nothing is trained to the end, and nothing is written."""

from __future__ import annotations

import dataclasses
import heapq
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..config.schema import Recipe
from ..methods.parse import read_method, terms
from ..runs.checking import check_jobs
from ..runs.environment import environment
from ..runs.execute import data_for
from ..runs.job import Job, Standing, check_erasing, standing
from ..runs.store import AT_ONCE
from ..runs.timed_steps import Pace, TooSlowError, is_timed_uncompiled, pace_of
from ..tasks.interface import Data
from ..tasks.registry import find_task
from ..train.loop import initial_model
from .equal_trials import equal_trials

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
    #: Seconds of one run that is left; None if nothing is left, or if it was not timed.
    seconds: float | None = None
    #: Whether the seconds come from finished runs; otherwise from a few timed steps.
    from_records: bool = False

    @property
    def left(self) -> int:
        """How many of its runs are still to be trained."""
        return self.runs - self.finished - self.scored_again


@dataclass(frozen=True)
class Forecast:
    """All lines of a plan, and the seconds that the command takes; None if that is not known."""

    lines: list[Line]
    seconds: float | None
    #: How many runs are done at once on this machine.
    workers: int = 1
    on_cluster: bool = False
    #: Whether the runs compile, but were timed without.
    uncompiled: bool = False
    #: What the final test does beside scoring, which the seconds leave out, such as "attacks".
    left_out: tuple[str, ...] = ()
    #: A sentence for people about the model; empty if nothing is left to train.
    model: str = ""


@dataclass(frozen=True)
class Plan:
    """The jobs of a command: of each label those that no label before it has, and what is left to do for them."""

    groups: dict[str, list[Job]]
    found: dict[Job, Standing]
    #: Sentences for people about the data.
    data: tuple[str, ...] = ()

    @property
    def lines(self) -> list[Line]:
        """A line for each label, without its time."""
        return [self._line(label, jobs) for label, jobs in self.groups.items()]

    def todo(self, label: str) -> list[Job]:
        """The jobs of a label that are to be trained."""
        return [job for job in self.groups[label] if self.found[job].todo == "train"]

    def _line(self, label: str, jobs: Sequence[Job]) -> Line:
        again = sum(self.found[job].todo == "score" for job in jobs)
        finished = len(jobs) - len(self.todo(label)) - again
        return Line(label, len(jobs), finished, again, jobs[0].epochs if jobs else 0)


def plan_of(groups: Mapping[str, Sequence[Job]]) -> Plan:
    """What is left to do of jobs, by label, in the order in which they would run.

    Raises what the command would raise if it would erase a run.
    """
    jobs = list(dict.fromkeys(job for group in groups.values() for job in group))
    recipe = jobs[0].settings()
    data = data_for(recipe)
    found = {job: standing(job, data.checksums) for job in jobs}
    check_erasing(jobs, found)
    own, known = dict[str, list[Job]](), set[Job]()
    for label, group in groups.items():
        own[label] = [job for job in dict.fromkeys(group) if job not in known]
        known |= set(own[label])
    tuned = {label.removesuffix(", tuning"): group for label, group in groups.items() if label.endswith(", tuning")}
    equal = equal_trials(recipe.training, {name: [job.method for job in group] for name, group in tuned.items()})
    return Plan(own, found, (_sizes(recipe, data), *find_task(recipe.task).notes(data), *equal))


def _sizes(recipe: Recipe, data: Data) -> str:
    """The size of each part of the data, and the steps of an epoch."""
    parts = {"train": "for training", "validation": "for validation", "test": "for the test"}
    sizes = [f"{data.counts[part]:,} {words}" for part, words in parts.items() if part in data.counts]
    steps = data.steps(recipe.training.batch_size)
    return (
        f"Data: {recipe.data.name}, {data.words}: {', '.join(sizes)}. An epoch has {steps:,} step{'s' * (steps > 1)}."
    )


def _model(recipe: Recipe, job: Job) -> str:
    """The size of the model. Another method may change it a little."""
    model = initial_model(recipe, read_method(job.method), 0, data_for(recipe, job.seed))
    return f"Model: {recipe.model.name}, {sum(x.numel() for x in model.parameters()):,} parameters."


def forecast(
    plan: Plan,
    on_cluster: bool = False,
    on_method: Callable[[str, int], None] = lambda label, done: None,
    say: Callable[[str], None] = lambda line: None,
) -> Forecast:
    """How long the jobs of a plan take.

    A method that has finished runs in the folder, on this machine and with as many workers, takes as long as these.
    Any other method is timed here for a few steps.

    Raises what the command would raise before its first run: for example, if a model cannot be built.

    Args:
        plan: the jobs, and what is left to do for them.
        on_cluster: whether the jobs would run on a cluster instead of this machine.
        on_method: hears the label that is looked at, and how many labels are done.
        say: hears lines for people.
    """
    jobs = list(plan.found)
    recipe = jobs[0].settings()
    todo = [job for job in jobs if plan.found[job].todo == "train"]
    check_jobs(todo, say)
    workers = jobs[0].at_once
    clock = _Clock(workers, recipe.training.device)
    lines, left = list[Line](), list[float | None]()
    for done, line in enumerate(plan.lines):
        on_method(line.label, done)
        seconds, from_records = clock.seconds(plan.groups[line.label], plan.todo(line.label), plan.found)
        known = [each for each in seconds if each is not None]
        lines.append(dataclasses.replace(line, seconds=fmean(known) if known else None, from_records=from_records))
        left += seconds
    on_method("", len(lines))
    told = [each for each in left if each is not None]
    total = None if on_cluster or len(told) < len(left) else _shared(told, workers)
    # Only final runs are tested.
    left_out = dict.fromkeys(words for job in jobs if job.final for words in job.settings().evaluation.beside_scores())
    model = _model(recipe, todo[0]) if todo else ""
    return Forecast(lines, total, workers, on_cluster, is_timed_uncompiled(recipe), tuple(left_out), model)


class _Clock:
    """Says how long a run takes: from finished runs, or from a few steps."""

    def __init__(self, workers: int, device: str) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None
        self._here = environment(device, workers)
        self._paces: dict[tuple[str, ...], Pace | None] = {}

    def seconds(
        self, jobs: Sequence[Job], todo: Sequence[Job], found: Mapping[Job, Standing]
    ) -> tuple[list[float | None], bool]:
        """The seconds of each job to train, None if it was not timed; and whether they come from finished runs."""
        recorded = self._recorded(jobs, found) if todo else None
        if recorded is None:
            return [self._measured(job) for job in todo], False
        return [recorded * job.epochs for job in todo], True

    def _recorded(self, jobs: Sequence[Job], found: Mapping[Job, Standing]) -> float | None:
        """The seconds of an epoch, everything included, in finished runs of the same kind; None without any."""
        each = []
        for job in jobs:
            run, result = found[job].run, found[job].result
            same = run is not None and all(run.environment.get(key) == self._here.get(key) for key in _SAME)
            if same and result is not None and result.status == "finished" and result.epochs:
                each.append(result.seconds / result.epochs)
        return fmean(each) if each else None

    def _measured(self, job: Job) -> float | None:
        """The seconds of a run. Settings of one method share a measurement, as do tuning and final runs."""
        kind = tuple(term.name for term in terms(job.method))
        if kind not in self._paces:
            # After a method that is too slow the total is unknown, and the others are hardly faster.
            too_slow = None in self._paces.values()
            try:
                self._paces[kind] = None if too_slow else pace_of(job, self._threads)
            except TooSlowError:
                self._paces[kind] = None
        pace = self._paces[kind]
        return None if pace is None else pace.of(job)


def _shared(seconds: Sequence[float], workers: int) -> float:
    """The time until the last run ends, if each worker takes the next run as soon as it is free."""
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
