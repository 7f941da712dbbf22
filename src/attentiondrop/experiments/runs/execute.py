"""Do one run from beginning to end: lock, resume, train, score, record."""

from __future__ import annotations

import dataclasses
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache

import torch
from accelerate import PartialState
from filelock import FileLock, Timeout

from ...errors import AttentionDropError
from ..config.schema import Recipe
from ..failures import in_words, is_lack_of_space
from ..files.whole_files import DamagedRecordError, write_text
from ..methods.parse import read_method
from ..tasks.interface import Data, DataSettings
from ..tasks.registry import find_task
from ..train.accelerator import device_of, is_main_process, processes
from ..train.epoch_log import STATE, Epoch
from ..train.loop import Training
from ..train.seeding import own_generators
from .environment import continued, environment
from .job import LOCK, Job, Standing, check_erasing, clear, standing
from .judging import score_again, scores_of
from .leftovers import forget_progress, remove_temporary
from .store import RESULT, TRACEBACK, Result, read_run, write_request, write_result
from .trackers import Trackers

OnEpoch = Callable[[int], None]
Say = Callable[[str], None]


class BusyError(AttentionDropError):
    """Another process works on the run."""


def data_for(recipe: Recipe, seed: int = 0) -> Data:
    """The data of a recipe for runs with a seed. The data of the last calls is cached: runs of a study share it.

    Its checksums are the same for all seeds.
    """
    return _data(recipe.task, recipe.data.for_seed(seed))


def read_data_anew() -> None:
    """Forget the cached data. A study begins with this: in a notebook, files may have changed since the last one."""
    _data.cache_clear()


@lru_cache(maxsize=12)  # one for each seed, where each seed has its own split
def _data(task: str, settings: DataSettings) -> Data:
    found: Data = find_task(task).load_data(settings)
    return found


def execute(job: Job, on_epoch: OnEpoch = lambda done: None, say: Say = lambda line: None, wait: bool = True) -> Result:
    """Do what is missing of a run and return its result. A finished run returns its result at once.

    If only the evaluation settings of a finished run have changed, its weights are scored again. A finished run of
    another recipe is erased only if `job.overwrite` is set; otherwise `WouldEraseError` is raised. Only final jobs get
    the test part. An error in training gives a `failed` result, with the traceback in the folder of the run. Lack of
    disk space is raised instead, since no further run could be recorded.

    Args:
        job: what to run.
        on_epoch: called with the number of epochs that are done.
        say: called with lines for people.
        wait: whether to wait while another process works on the same run; otherwise raise `BusyError`.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            if is_main_process():
                stack.enter_context(FileLock(job.folder / LOCK, blocking=wait))
                remove_temporary(job.folder)
            stack.enter_context(own_generators())
            if processes() > 1:
                # The main process may have waited for the lock: only from now on all find the same left to do.
                PartialState(device_of(job.settings().training) == "cpu").wait_for_everyone()
            return _execute(job, on_epoch, say)
    except Timeout:
        raise BusyError(f"{job.label}: another process works on {job.folder}") from None


def _execute(job: Job, on_epoch: OnEpoch, say: Say) -> Result:
    recipe = job.settings()
    data = data_for(recipe, job.seed)
    found = standing(job, data.checksums)
    if found.result is not None:
        return found.result
    check_erasing([job], {job: found})
    if not job.final:
        data = data.having("train", "validation")
    if is_main_process() and found.todo == "train":
        _begin(job, found, data)
    start = time.perf_counter()
    try:
        if found.todo == "score" and found.run is not None:
            result = score_again(job, found.run, data)
        else:
            result = _train_from_sound_files(job, data, on_epoch, say)
        _finish(job, result)
    except Exception as error:
        if is_lack_of_space(error):
            raise
        result = _failed(job, in_words(error), start)
        # If scoring again failed, the run stays finished and keeps its old scores.
        if found.todo != "score":
            _finish(job, result)
    return result


def _begin(job: Job, found: Standing, data: Data) -> None:
    """Remove files that do not belong to the run from its folder, and write its request."""
    if found.stale:
        clear(job.folder)
    for leftover in (RESULT, TRACEBACK):
        (job.folder / leftover).unlink(missing_ok=True)
    here = environment(device_of(job.settings().training), job.at_once)
    if found.run is not None and found.run.epochs and not found.stale:
        here = continued(found.run.environment, here)
    write_request(job.folder, job.request(data.checksums), here)


def _finish(job: Job, result: Result) -> None:
    """Write the result, and remove files that are no longer needed."""
    if not is_main_process():
        return
    write_result(job.folder, result)
    if result.status != "failed":
        (job.folder / STATE).unlink(missing_ok=True)
    if not job.keep_weights:
        for path in job.folder.glob("*.safetensors"):
            path.unlink()


def _train_from_sound_files(job: Job, data: Data, on_epoch: OnEpoch, say: Say) -> Result:
    """Train and test. If stored weights or state are damaged, say so and start again from the first epoch."""
    try:
        return _train_and_test(job, data, on_epoch, say)
    except DamagedRecordError as error:
        say(f"{job.label}: starts again, since {error}")
    if is_main_process():
        forget_progress(job.folder)
    PartialState().wait_for_everyone()
    return _train_and_test(job, data, on_epoch, say)


def _train_and_test(job: Job, data: Data, on_epoch: OnEpoch, say: Say) -> Result:
    recipe, method = job.settings(), read_method(job.method)
    start = time.perf_counter()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    training = Training(recipe, method, job.seed, data, job.folder, lambda line: say(f"{job.label}: {line}"))
    accelerator = training.accelerator
    earlier = 0.0
    if training.resume():
        say(f"{job.label}: resumes after epoch {training.done}")
        # The time of the epochs before the interruption counts, too. (That of their validation was not recorded.)
        before = read_run(job.folder)
        earlier = 0.0 if before is None else sum(epoch.seconds for epoch in before.epochs)
    on_epoch(training.done)
    with Trackers(job, accelerator.is_main_process) as trackers:

        def heard(epoch: Epoch) -> None:
            trackers.epoch(epoch)
            on_epoch(epoch.epoch)

        training.run(heard)
        accelerator.wait_for_everyone()
        epochs = read_run(job.folder).epochs  # type: ignore[union-attr]
        cuda = accelerator.device.type == "cuda"
        so_far = Result(
            status="diverged",
            seconds=earlier + time.perf_counter() - start,
            epochs=len(epochs),
            error="the loss stopped being a number",
            throughput=_throughput(epochs),
            peak_memory_mib=torch.cuda.max_memory_allocated() / 2**20 if cuda else None,
            peak_reserved_mib=torch.cuda.max_memory_reserved() / 2**20 if cuda else None,
            capture=training.captured if cuda else None,
            steps=training.steps * len(epochs),
            parameters=sum(parameter.numel() for parameter in training.plain.parameters()),
            counts=dict(data.counts),
            drawn_checksum=training.task.drawn_checksum(data),
        )
        if epochs[-1].train_loss is None:
            return so_far
        scores = scores_of(job, data, epochs, accelerator)
        result = dataclasses.replace(so_far, status="finished", error=None, **scores)
        result = dataclasses.replace(result, seconds=earlier + time.perf_counter() - start)
        trackers.result(result)
        return result


def _throughput(epochs: Sequence[Epoch]) -> float | None:
    """Samples per second, the median over epochs. The first epoch warms up and counts only if it is the only one."""
    speeds = [epoch.samples / epoch.seconds for epoch in epochs]
    return statistics.median(speeds[1:] or speeds) if speeds else None


def _failed(job: Job, error: str, start: float) -> Result:
    """The result of a failed run. Call it while handling the error: it writes the traceback into the folder."""
    if is_main_process():
        write_text(job.folder / TRACEBACK, traceback.format_exc())
    return Result("failed", time.perf_counter() - start, epochs=job.epochs_done(), error=error)
