"""Processes that start at once: forks of one that has already imported torch and all else that takes seconds.

That one is fresh, not a fork of the tests themselves, so that no test has an influence. What a test checks of importing, or of
`python -m attentiondrop`, needs a process of its own kind.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRELOADED = [
    "torch.distributed.fsdp",
    "attentiondrop.torch",
    "attentiondrop.cli.main",
    "attentiondrop.experiments.studies.compare",
    "timm",
    "sklearn.datasets",
    "scipy.stats",
]


class Fork:
    """`target(*arguments)` in a process of its own, with one thread, and with what it prints in a file."""

    def __init__(self, target: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        handle, name = tempfile.mkstemp(prefix="fork-")
        os.close(handle)
        self.said = Path(name)
        self.process = context.Process(target=_begin, args=(name, environment or {}, target, arguments))
        self.process.start()

    def is_running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> bool:
        """By SIGKILL. Whether it was still running, and died of it."""
        self.process.kill()
        self.process.join()
        self.said.unlink()
        return self.process.exitcode == -signal.SIGKILL

    def wait(self, seconds: float = 300.0) -> tuple[int | None, str]:
        """The exit status, and what was printed. Out of time, the process is killed, and its status says so."""
        limit = time.monotonic() + seconds
        self.process.join(seconds)
        if time.monotonic() > limit:
            self.process.kill()
            self.process.join()
        text = self.said.read_text()
        self.said.unlink()
        return self.process.exitcode, text


def command(*arguments: str, environment: dict[str, str] | None = None) -> Fork:
    """`attentiondrop ...`, on its way."""
    return Fork(run_command, *arguments, environment=environment)


def two_ranks(target: Callable[..., Any], *arguments: Any) -> list[tuple[int | None, str]]:
    """`target(*arguments)` in two processes that find each other, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        Fork(target, *arguments, environment=place | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"})
        for rank in ("0", "1")
    ]
    return [rank.wait() for rank in ranks]


def _begin(said: str, environment: dict[str, str], target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    file = os.open(said, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.update(environment)
    torch.set_num_threads(1)
    target(*arguments)


def run_command(*arguments: str) -> None:
    from attentiondrop.cli.main import main

    sys.exit(main(list(arguments)))


def run_file(file: str, *arguments: str) -> None:
    """`python file ...`."""
    sys.argv = [file, *arguments]
    runpy.run_path(file, run_name="__main__")
