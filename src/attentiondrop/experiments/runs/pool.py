"""Run the jobs of a study: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

import atexit
import gc
import math
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...errors import ArgumentError, AttentionDropError
from ..tasks.registry import task_of
from ..train.accelerator import device_of
from .checking import check_jobs, kind_of
from .deadline import Deadline
from .environment import versions
from .execute import BusyError, execute
from .gpu_sharing import MOST_PROCESSES, sharing
from .job import Job, Standing, check_erasing, standing
from .orphans import end_with_parent
from .ray_cluster import cluster_at
from .store import Result
from .versions import counted, versions_text

#: Seconds between two checks of the progress of other processes.
_POLL = 0.5


class Listener(Protocol):
    """Receives the messages and the progress of a study."""

    def say(self, line: str) -> None:
        """Show one line to the user."""

    def plan(self, total: int) -> None:
        """All runs together have to train `total` epochs."""

    def progress(self, label: str, done: float) -> None:
        """`done` of these epochs are done; `label` names the current run."""


class OutOfTimeError(AttentionDropError):
    """Jobs are left that were not started, because the time was over."""


class LostGpuError(AttentionDropError):
    """After a fault on the GPU, a process cannot use it any more."""


@dataclass(frozen=True)
class Where:
    """Where jobs run: in this process, in `workers` processes of this machine, or on the Ray cluster at `ray`.

    No job is started that would end after the `deadline`. If jobs are left then, `OutOfTimeError` is raised once the
    started ones have ended. A Ray cluster takes all jobs at once, and is not limited.
    With 0 `workers`, a study takes as many as suit it, see `worker_count`.
    Several workers on one GPU use it at the same time, see `gpu_sharing`; without `mps` they take turns.
    """

    workers: int = 1
    ray: str | None = None
    deadline: Deadline = field(default_factory=Deadline, compare=False)
    mps: bool = True


def run_jobs(
    jobs: Sequence[Job], checksums: dict[str, str], listener: Listener, where: Where, more: int = 0
) -> dict[Job, Result]:
    """Run all jobs that are not done yet, and return the result of each job.

    `more` is a number of epochs that later calls will train; it only counts for the progress. If a job would erase a
    finished run without `Job.overwrite`, nothing is started.
    """
    each = list(dict.fromkeys(jobs))
    found = {job: standing(job, checksums) for job in each}
    check_erasing(each, found)
    results = {job: one.result for job, one in found.items() if one.result is not None}
    missing = [job for job in each if job not in results]
    _say_what_is_there(found, listener)
    bar = _Bar(listener, {job: found[job] for job in missing}, more)
    if not missing:
        return results
    check_jobs([job for job in missing if found[job].todo == "train"], listener.say)
    if where.ray is not None:
        run = _on_ray(missing, where.ray, bar)
    elif where.workers > 1:
        run = _in_processes(missing, where, bar)
    else:
        run = _in_sequence(missing, bar, where.deadline)
    for job, result in run:
        results[job] = result
        if found[job].todo == "train":
            where.deadline.learn(job, result)
        bar.finished(job, result)
    if left := len([job for job in each if job not in results]):
        are = "is" if left == 1 else "are"
        raise OutOfTimeError(f"the time is over, {left} of {len(each)} runs {are} left: run the same command to go on")
    return results


def _say_what_is_there(found: Mapping[Job, Standing], listener: Listener) -> None:
    """Say which runs are kept, which are only scored, and which are run again, with the reason."""
    for one in found.values():
        if one.todo == "train" and one.why is not None:
            listener.say(one.why)
    for why, count in Counter(one.why for one in found.values() if one.todo == "score").items():
        listener.say(f"{count} finished runs are scored again from their weights, not trained ({why})")
    kept = [one.run for one in found.values() if one.result is not None and one.run is not None]
    if not kept:
        return
    listener.say(f"{len(kept)} of {len(found)} runs are finished already")
    now = versions_text(versions())
    others = Counter(text for run in kept if (text := versions_text(run.environment)) != now)
    if others:
        listener.say(f"{sum(others.values())} of them were made with other versions: {counted(others)}; here {now}")


class _Bar:
    """Counts the epochs of all jobs together and reports them to the listener."""

    def __init__(self, listener: Listener, jobs: Mapping[Job, Standing], more: int) -> None:
        self.listener, self.jobs = listener, list(jobs)
        self.epochs = {job: job.epochs if one.todo == "train" else 0 for job, one in jobs.items()}
        self.done: dict[Job, int] = {}
        listener.plan(sum(self.epochs.values()) + more)

    def epoch(self, job: Job, done: int) -> None:
        self.done[job] = done
        self.listener.progress(job.label, sum(self.done.values()))

    def finished(self, job: Job, result: Result) -> None:
        self.listener.say(f"{job.label}: {describe(job, result)}")
        self.epoch(job, self.epochs[job])

    def look(self, running: int) -> None:
        """Read the progress of jobs in other processes from their folders."""
        for job in self.jobs:
            if self.done.get(job, 0) < self.epochs[job]:
                self.done[job] = job.epochs_done()
        label = "1 run" if running == 1 else f"{running} runs at once"
        self.listener.progress(label, sum(self.done.values()))


def describe(job: Job, result: Result) -> str:
    """How a run ended, in a few words, with the part of the data that was scored."""
    part, scores = ("test", result.test) if result.test is not None else ("validation", result.validation)
    if scores is None:
        return f"{result.status}: {result.error}"
    metric = task_of(job.recipe).metrics.primary
    return f"{part} {metric.label} {metric.text(scores[metric.name])}, {result.seconds:.1f} s"


def _in_sequence(jobs: Sequence[Job], bar: _Bar, deadline: Deadline) -> Iterator[tuple[Job, Result]]:
    """Run one job after the other. Jobs that another process works on come last."""
    busy = []
    before: Job | None = None
    try:
        for job in jobs:
            if not deadline.allows(job):
                continue  # a shorter one may end in time
            if before is not None:
                _tidy_up_after(before)
            before = job
            try:
                yield job, _one(job, bar, wait=False)
            except BusyError:
                busy.append(job)
        for job in busy:
            bar.listener.say(f"{job.label}: another process works on it, waiting")
            yield job, _one(job, bar, wait=True)
    finally:
        if any(map(_is_compiled, jobs)):
            gc.unfreeze()  # this process may go on with something else


def _one(job: Job, bar: _Bar, wait: bool) -> Result:
    result = execute(job, lambda done: bar.epoch(job, done), bar.listener.say, wait)
    _check_gpu(job, result)
    return result


def _elsewhere(job: Job) -> tuple[Result, list[str]]:
    """In another process: the result, and the lines for people that this process cannot show."""
    lines: list[str] = []
    result = execute(job, say=lines.append)
    _check_gpu(job, result)
    return result, lines


def _several(jobs: Sequence[Job], deadline: Deadline) -> Iterator[tuple[int, Result, list[str]]]:
    """In another process: one job after the other, if it can end in time. Yields number and result when a run ends."""
    for number, job in enumerate(jobs):
        if deadline.allows(job):
            yield number, *_elsewhere(job)
            _tidy_up_after(job)


#: In a worker: the queue to the parent, and the parent's `Deadline.pace`. A worker can get them only when it starts.
_reports: Any = None
_pace: Any = None


def _work(number: int, bundle: Sequence[Job], until: float) -> None:
    """In a worker: do a bundle, and report each run when it ends, with the numbers of the bundle and of the job in it.

    `put` returns when the report is in the pipe: once a bundle has ended, the parent finds all its reports there. They
    are small, so that a report is written at once: a worker that dies does not leave half of one.
    """
    for place, result, lines in _several(bundle, Deadline(until, _pace)):
        _reports.put((number, place, result, lines))


def _check_gpu(job: Job, result: Result) -> None:
    """After a fault on the GPU every later run of this process would fail, whatever its method."""
    if result.status != "failed" or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise LostGpuError(
            f"{job.label}: {result.error}. After this fault the process cannot use its GPU any more (with the "
            "Multi-Process Service, no other worker can, either). Run the same command to resume"
        ) from None


def _tidy_up_after(job: Job) -> None:
    if _is_compiled(job):
        set_aside()


def _is_compiled(job: Job) -> bool:
    training = job.recipe["training"]
    return bool(training.get("compile") or training.get("compile_loss"))


def set_aside() -> None:
    """Free what a run has left. What stays is above all compiled code: later searches for garbage leave it out.

    A search through all of it takes a second, and each captured run begins with one. What is set aside is never
    searched again, unless somebody calls `gc.unfreeze`.
    """
    gc.collect()
    gc.freeze()
    # At the end of the process it must be free again: Triton's library prints a complaint otherwise.
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)


def _bundles(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Jobs that one worker does one after the other: of one kind, so that it compiles their model once.

    Without a compiler every job is alone, in the order of the jobs. There are about three bundles for each worker, so
    that none waits long for the last one.
    """
    most = math.ceil(len(jobs) / (3 * workers))
    bundles: list[list[Job]] = []
    open_ones: dict[Any, list[Job]] = {}
    for job in jobs:
        kind = kind_of(job)
        if not _is_compiled(job) or len(open_ones.get(kind, [None] * most)) >= most:
            open_ones[kind] = []
            bundles.append(open_ones[kind])
        open_ones[kind].append(job)
    return bundles


def _share_a_gpu(jobs: Sequence[Job], workers: int) -> bool:
    """Whether several workers use one GPU, not more than a service accepts."""
    gpus = torch.cuda.device_count()
    if not gpus < workers <= gpus * MOST_PROCESSES:
        return False
    return any(device_of(job.settings().training) == "cuda" for job in jobs)


def _in_processes(jobs: Sequence[Job], where: Where, bar: _Bar) -> Iterator[tuple[Job, Result]]:
    with ExitStack() as stack:
        share = where.mps and _share_a_gpu(jobs, where.workers)
        variables = stack.enter_context(sharing(bar.listener.say)) if share else {}
        yield from _in_workers(jobs, where, bar, variables)


def _in_workers(
    jobs: Sequence[Job], where: Where, bar: _Bar, variables: Mapping[str, str]
) -> Iterator[tuple[Job, Result]]:
    workers = where.workers
    context = multiprocessing.get_context("spawn")
    numbers: Any = context.Queue()
    for number in range(workers):
        numbers.put(number)
    reports: Any = context.SimpleQueue()
    others = set(multiprocessing.active_children())
    given = numbers, workers, variables, reports, where.deadline.pace
    pool = ProcessPoolExecutor(workers, context, _prepare_worker, given)
    bundles = _bundles(jobs, workers)
    waiting: set[Future[None]] = set()
    try:
        waiting |= {pool.submit(_work, number, bundle, where.deadline.until) for number, bundle in enumerate(bundles)}
        while waiting:
            done, _ = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
            while not reports.empty():
                number, place, result, lines = reports.get()
                for line in lines:
                    bar.listener.say(line)
                yield bundles[number][place], result
            for future in done:
                waiting.remove(future)
                future.result()  # raises the error of a bundle, after the runs before it were reported
            bar.look(min(workers, len(waiting)))
    except BrokenProcessPool:
        raise AttentionDropError(
            "a worker process died, perhaps for lack of memory: use fewer --workers; run the same command to resume"
        ) from None
    finally:
        # (Where runs share a GPU, the service can end only after all workers have.)
        pool.shutdown(wait=bool(variables) and not waiting, cancel_futures=True)
        if waiting:  # after an error or an interruption, the runs in progress are not needed
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()


def _prepare_worker(numbers: Any, workers: int, variables: Mapping[str, str], reports: Any, pace: Any) -> None:
    """Give a worker its share of the cores, one of the accelerators, what it needs to share that, and its queue."""
    global _reports, _pace
    _reports, _pace = reports, pace
    end_with_parent()
    os.environ.update(variables)  # CUDA reads them when a process first uses a GPU

    # Ctrl-C reaches all processes of a terminal. Workers ignore it: the parent ends them, and prints one message.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    if (count := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(numbers.get() % count)


def _on_ray(jobs: Sequence[Job], address: str, bar: _Bar) -> Iterator[tuple[Job, Result]]:
    """Run the jobs as tasks of a running cluster. All its machines must see the same `--out` folder."""
    with cluster_at(address) as ray:
        gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
        remote = ray.remote(num_gpus=gpus, max_retries=2)(_elsewhere)
        waiting = {remote.remote(job): job for job in jobs}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=_POLL)
            for reference in done:
                job = waiting.pop(reference)
                result, lines = ray.get(reference)
                for line in lines:
                    bar.listener.say(line)
                if not job.folder.is_dir():
                    raise ArgumentError(f"out {job.out}: expected a folder that all machines of the cluster share")
                yield job, result
            bar.look(len(waiting))
