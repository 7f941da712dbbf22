"""Several workers on one GPU: the service that lets them use it at the same time begins and ends with the command.

The program that controls the service is replaced by one that writes down how it is called.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attentiondrop.experiments.runs import gpu_sharing
from attentiondrop.experiments.runs import pool as running
from attentiondrop.experiments.runs.deadline import Deadline
from attentiondrop.experiments.runs.gpu_sharing import CONTROL, sharing
from attentiondrop.experiments.runs.pool import LostGpuError, Where
from attentiondrop.experiments.runs.store import Result

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the service exists on Linux only")

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
#: With "-d" it starts and ends at once, as the real one does; otherwise it reads commands.
STAND_IN = """#!/bin/sh
if [ "$1" = -d ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> "{log}"; exit {status}; fi
echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >> "{log}"
"""


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    """What the stand-in was asked for."""
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setattr(gpu_sharing, "_USUAL_PIPES", tmp_path / "nobody")
    return stand_in(tmp_path, monkeypatch)


def stand_in(folder: Path, monkeypatch, status: int = 0) -> Path:
    program, found = folder / CONTROL, folder / "log"
    program.write_text(STAND_IN.format(log=found, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return found


def test_the_service_begins_and_ends_with_the_workers(log) -> None:
    said: list[str] = []
    with sharing(said.append) as variables:
        folder = Path(variables[PIPES])
        assert folder.is_dir()
        assert log.read_text() == f"start {folder}\n"
        assert PIPES not in os.environ  # only the workers use it
    assert log.read_text() == f"start {folder}\nquit -t 5 {folder}\n"
    assert not folder.exists()
    assert not said


PARENT = """
import time
from attentiondrop.experiments.runs.deadline import Deadline
from attentiondrop.experiments.runs.gpu_sharing import sharing
with sharing(print):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_it_ends_when_the_command_is_killed(log) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 10
    while "quit" not in log.read_text() and time.monotonic() < limit:
        time.sleep(0.02)
    assert "quit" in log.read_text()


def test_without_the_program_a_line_says_so(log, monkeypatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    said: list[str] = []
    with sharing(said.append) as variables:
        assert variables == {}
    assert len(said) == 1 and "is not installed" in said[0]


def test_if_it_does_not_start_a_line_says_so(log, tmp_path, monkeypatch) -> None:
    stand_in(tmp_path, monkeypatch, status=1)
    said: list[str] = []
    with sharing(said.append) as variables:
        assert variables == {}
    assert len(said) == 1 and "did not start" in said[0]
    assert "quit" not in log.read_text()


def test_a_service_of_the_user_is_left_alone(log, tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(PIPES, "elsewhere")
        with sharing(print) as variables:
            assert variables == {}
    monkeypatch.setattr(gpu_sharing, "_USUAL_PIPES", tmp_path)
    (tmp_path / "control").touch()
    with sharing(print) as variables:
        assert variables == {}
    assert not log.exists()


@pytest.mark.parametrize(
    ("workers", "gpus", "device", "shared"),
    [(2, 1, "cuda", True), (2, 2, "cuda", False), (2, 0, "cuda", False), (2, 1, "cpu", False), (49, 1, "cuda", False)],
)
def test_who_shares_a_gpu(job, monkeypatch, workers: int, gpus: int, device: str, shared: bool) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr(running, "device_of", lambda _: device)
    assert running._share_a_gpu([job()], workers) is shared


@pytest.mark.parametrize("mps", [True, False])
def test_workers_are_told_of_the_service(job, log, listener, monkeypatch, mps: bool) -> None:
    monkeypatch.setattr(running, "_share_a_gpu", lambda *_: True)
    seen = []
    monkeypatch.setattr(running, "_in_workers", lambda jobs, where, bar, variables: seen.append(variables) or iter(()))
    list(running._in_processes([job()], Where(2, mps=mps), running._Bar(listener, {}, 0)))
    assert [PIPES in one for one in seen] == [mps]
    assert log.exists() is mps


def test_a_worker_finds_the_service(monkeypatch) -> None:
    monkeypatch.setattr(running, "end_with_parent", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setenv(PIPES, "before")
    running._prepare_worker(iter(()), 2, {PIPES: "ours"}, None, None)
    assert os.environ[PIPES] == "ours"


@pytest.mark.parametrize(("gpus", "devices"), [(0, []), (1, []), (2, [0, 1, 0, 1]), (3, [0, 1, 2, 0])])
def test_workers_are_spread_over_gpus_and_cores(monkeypatch, gpus: int, devices: list[int]) -> None:
    """With one GPU there is nothing to choose."""
    used: list[int] = []
    threads: list[int] = []
    monkeypatch.setattr(running, "end_with_parent", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("os.cpu_count", lambda: 10)
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.set_device", used.append)
    numbers = queue.SimpleQueue[int]()
    for number in range(4):
        numbers.put(number)
    for _ in range(4):
        running._prepare_worker(numbers, 4, {}, None, None)
    assert used == devices and threads == [2] * 4


def test_a_process_that_lost_its_gpu_takes_no_other_run(job, listener, monkeypatch) -> None:
    """All its later runs would fail, and be recorded as failures of their methods."""
    failed, taken = Result("failed", 1.0, 0, error="illegal instruction"), []
    monkeypatch.setattr(running, "execute", lambda one, *_, **__: taken.append(one) or failed)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    assert len(list(running._several([job(), job()], Deadline()))) == 2  # a failure that is no fault of the GPU

    def lost() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal instruction was encountered")

    taken.clear()
    monkeypatch.setattr("torch.cuda.synchronize", lost)
    with pytest.raises(LostGpuError, match=r"none, seed 0: illegal instruction.*Run the same command to resume"):
        list(running._several([job(), job()], Deadline()))
    assert len(taken) == 1
    with pytest.raises(LostGpuError):
        next(running._in_sequence([job(), job()], running._Bar(listener, {}, 0), Deadline()))
