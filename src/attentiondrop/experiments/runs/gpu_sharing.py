"""Let several processes use one GPU at the same time, through NVIDIA's Multi-Process Service (MPS).

Without it, processes take turns on a GPU, and each turn leaves most of it idle if the models are small.
`benchmarks/many_runs.py` compares both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
#: By these variables a process finds its service.
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
#: A service of the whole machine has its pipes here.
_USUAL_PIPES = Path("/tmp/nvidia-mps")
#: The most processes that a service accepts on the GPUs that accept the fewest.
MOST_PROCESSES = 48
#: Seconds in which the service starts, or ends.
_PATIENCE = 20
#: Waits until the process that started it is gone or closes the pipe, however that ends; then it ends the service.
_END_WITH_PARENT = f'cat; echo quit -t 5 | {CONTROL}; rm -rf "${_PIPES}"'


@contextmanager
def sharing(say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """Start a service of our own. Yields variables for the processes that shall use it: none, if there is no service.

    A service that the user has started is used instead. One line says why there is none.
    """
    if _PIPES in os.environ or (_USUAL_PIPES / "control").exists():
        yield {}
        return
    if shutil.which(CONTROL) is None:
        say(f"runs take turns on the GPU: {CONTROL}, which lets them use it at the same time, is not installed")
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="attentiondrop-mps-")
    variables = {_PIPES: folder, _LOGS: folder}
    try:
        _start(variables)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        say(f"runs take turns on the GPU: {CONTROL}, which lets them use it at the same time, did not start ({error})")
        yield {}
        return
    with _watcher(variables):
        yield variables


def _start(variables: Mapping[str, str]) -> None:
    command = [CONTROL, "-d"]
    subprocess.run(command, env=os.environ | variables, check=True, timeout=_PATIENCE, capture_output=True)


@contextmanager
def _watcher(variables: Mapping[str, str]) -> Iterator[None]:
    """A process that ends the service when this context ends, or when this process is killed."""
    watcher = subprocess.Popen(
        ["sh", "-c", _END_WITH_PARENT],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must not end it first
    )
    try:
        yield
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        try:
            watcher.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            watcher.kill()
