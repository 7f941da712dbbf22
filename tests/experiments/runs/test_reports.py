"""Runs in other processes are reported one by one, as soon as they end, even if a worker does several in a row."""

from __future__ import annotations

import multiprocessing
import threading
from types import SimpleNamespace

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.runs import deadline, pool
from attentiondrop.experiments.runs.deadline import Deadline
from attentiondrop.experiments.runs.job import Job, Standing
from attentiondrop.experiments.runs.pool import OutOfTimeError, Where, run_jobs
from attentiondrop.experiments.runs.store import Result

from ..conftest import Silent, scored


@pytest.fixture(autouse=True)
def one_bundle(monkeypatch) -> None:
    """One worker does all jobs, as if they shared compiled code."""
    monkeypatch.setattr(pool, "_bundles", lambda jobs, workers: [list(jobs)])


def lines_of(seeds: int) -> list[str]:
    """What is said about the first runs: their own messages and their scores, in order, once."""
    said = [(f"none, seed {seed}: a message", f"none, seed {seed}: validation accuracy") for seed in range(seeds)]
    return [line for pair in said for line in pair]


def said_by(listener: Silent) -> list[str]:
    return [line.partition(" 5")[0] for line in listener.lines]


def result(job: Job, say) -> Result:
    say(f"{job.label}: a message")
    return Result("finished", 1.0, 2, validation=scored(0.5))


def test_a_run_is_reported_before_the_next_one_of_its_bundle_ends(job, listener, threads, monkeypatch) -> None:
    jobs = [job(seed=seed) for seed in range(3)]
    heard = [threading.Event() for _ in jobs]
    say = listener.say

    def listen(line: str) -> None:
        say(line)
        if "accuracy" in line:
            heard[int(line.partition("seed ")[2][0])].set()

    def wait_for_the_last(one: Job, say) -> Result:
        assert one.seed == 0 or heard[one.seed - 1].wait(timeout=10), "the run before was not reported"
        return result(one, say)

    listener.say = listen
    monkeypatch.setattr(pool, "execute", wait_for_the_last)
    assert list(run_jobs(jobs, {}, listener, Where(2))) == jobs
    assert said_by(listener) == lines_of(3)
    assert listener.done[-1] == sum(one.epochs for one in jobs)


def test_runs_before_an_error_are_reported(job, listener, threads, monkeypatch) -> None:
    def fails(one: Job, say) -> Result:
        if one.seed == 2:
            raise OSError("no space left")
        return result(one, say)

    monkeypatch.setattr(pool, "execute", fails)
    with pytest.raises(OSError, match="no space left"):
        run_jobs([job(seed=seed) for seed in range(4)], {}, listener, Where(2))
    assert said_by(listener) == lines_of(2)


def test_runs_before_the_end_of_the_time_are_reported(job, listener, threads, monkeypatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 11.0])
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: next(clock)))
    monkeypatch.setattr(pool, "execute", result)
    with pytest.raises(OutOfTimeError, match="2 of 4 runs are left"):
        run_jobs([job(seed=seed) for seed in range(4)], {}, listener, Where(2, deadline=Deadline(2.5)))
    assert said_by(listener) == lines_of(2)


def test_a_worker_that_dies_leaves_its_reports(job, listener) -> None:
    """A real worker, killed when its first run is heard of, while it works on the second one, which is long."""
    jobs = [job(), job("none", 1, "training.epochs=200")]
    others = set(multiprocessing.active_children())
    bar = pool._Bar(listener, {one: Standing("train") for one in jobs}, 0)
    runs = pool._in_workers(jobs, Where(1), bar, {})
    first, found = next(runs)
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    assert first is jobs[0] and found.status == "finished"
    with pytest.raises(AttentionDropError, match="a worker process died"):
        next(runs)
    assert jobs[1].epochs_done() < 200
