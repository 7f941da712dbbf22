"""Runs that would end after the deadline are not started; shorter ones may still be."""

from __future__ import annotations

import ctypes
import math
from time import sleep
from types import SimpleNamespace

import pytest

from attentiondrop.experiments.runs import deadline, pool
from attentiondrop.experiments.runs.deadline import ROOM, Deadline, work
from attentiondrop.experiments.runs.pool import OutOfTimeError, Where, run_jobs
from attentiondrop.experiments.runs.store import Result

from ..conftest import scored

LONG = "blur+consistency"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `now` is what time it is."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: found.now))
    return found


def ended(seconds: float, status: str = "finished") -> Result:
    return Result(status, seconds, 2, validation=scored(0.5))


def test_work_counts_epochs_and_views(job) -> None:
    epochs = job().settings().training.epochs
    assert [work(job(text)) for text in ("none", "longer(times=3)", LONG)] == [epochs, 3 * epochs, 2 * epochs]
    assert [work(job("none", 0, f"training.epochs={epochs}")) for epochs in (1, 7)] == [1, 7]


def test_a_run_has_to_end_in_time(job, clock) -> None:
    found = Deadline(100.0)
    clock.now = 99.0
    assert found.allows(job(LONG))  # nothing is known yet
    clock.now = 100.5
    assert not found.allows(job())
    clock.now = 0.0
    found.learn(job(), ended(20.0))
    for text, needs in (("none", 20 * ROOM), (LONG, 40 * ROOM)):
        clock.now = 100 - needs - 0.1
        assert found.allows(job(text))
        clock.now = 100 - needs + 0.1
        assert not found.allows(job(text))


def test_the_median_of_finished_runs_counts(job, clock) -> None:
    found = Deadline(100.0)
    for seconds, status in ((90.0, "finished"), (10.0, "finished"), (1.0, "diverged"), (12.0, "finished")):
        found.learn(job(), ended(seconds, status))
    assert found.pace.value * work(job()) == pytest.approx(12.0)


def test_without_a_deadline_every_run_may_start(job) -> None:
    found = Deadline()
    found.learn(job(), ended(math.inf))
    assert found.allows(job())


def test_processes_share_what_one_of_them_learns(job, clock) -> None:
    parent = Deadline(50.0)
    worker = Deadline(50.0, parent.pace)
    assert worker.allows(job(LONG))
    parent.learn(job(), ended(30.0))
    assert worker.allows(job()) and not worker.allows(job(LONG))


def test_a_shorter_run_takes_the_place_of_one_that_is_too_long(job, listener, monkeypatch, clock) -> None:
    def execute(one, *given) -> Result:
        seconds = 10 * work(one) / work(job())
        clock.now += seconds
        return ended(seconds)

    monkeypatch.setattr(pool, "execute", execute)
    jobs = [job(), job(LONG), job("none", 1), job("none", 2)]
    with pytest.raises(OutOfTimeError, match="the time is over, 2 of 4 runs are left"):
        run_jobs(jobs, {}, listener, Where(deadline=Deadline(23.0)))
    assert [line.partition(":")[0] for line in listener.lines if "accuracy" in line] == ["none, seed 0", "none, seed 1"]


def test_a_worker_passes_over_a_run_that_is_too_long(job, monkeypatch, clock) -> None:
    monkeypatch.setattr(pool, "execute", lambda one, say: ended(1.0))
    shared = SimpleNamespace(value=20.0 / work(job()))
    found = list(pool._several([job(LONG), job()], Deadline(30.0, shared)))
    assert [number for number, *_ in found] == [1]


def test_workers_are_told_what_the_parent_learns(job, listener, threads, monkeypatch, clock) -> None:
    real = Deadline.allows

    def allows(self: Deadline, one) -> bool:
        tries = 0
        while one.method == LONG and not self.pace.value and tries < 500:  # until it knows something
            tries += 1
            sleep(0.01)
        return real(self, one)

    monkeypatch.setattr(Deadline, "allows", allows)
    monkeypatch.setattr(pool, "execute", lambda one, say: ended(20.0))
    with pytest.raises(OutOfTimeError, match="1 of 3 runs is left"):
        run_jobs([job(), job(LONG), job("none", 1)], {}, listener, Where(2, deadline=Deadline(30.0)))
    assert isinstance(pool._pace, ctypes.c_double)  # which processes can share
    assert pool._pace.value == pytest.approx(20.0 / work(job()))


def test_what_one_call_learns_serves_the_next_one(job, listener, monkeypatch, clock) -> None:
    """A comparison trains its trials with one call, and the methods that they choose with another."""
    monkeypatch.setattr(pool, "execute", lambda one, *given: ended(20.0))
    where = Where(deadline=Deadline(30.0))
    run_jobs([job()], {}, listener, where)
    with pytest.raises(OutOfTimeError):
        run_jobs([job(LONG)], {}, listener, where)


def test_runs_that_were_only_scored_teach_nothing(job, listener, monkeypatch, clock) -> None:
    learned: list[str] = []
    monkeypatch.setattr(Deadline, "learn", lambda self, one, result: learned.append(one.label))
    monkeypatch.setattr(pool, "execute", lambda one, *given: ended(1.0))
    real = pool.standing

    def standing(one, checksums):
        found = real(one, checksums)
        return found if one.seed else found.__class__("score", why="other metrics")

    monkeypatch.setattr(pool, "standing", standing)
    run_jobs([job(), job("none", 1)], {}, listener, Where())
    assert learned == ["none, seed 1"]
