"""Run a function of a test module in two processes, as two ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_two_ranks(file: str, kind: str) -> None:
    """Call `worker(rank, kind)` of a test file in each of two processes; what fails there fails here."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    folder, module = str(Path(file).parent), Path(file).stem
    code = f"import sys; sys.path[:0] = {[folder, *sys.path]!r}; import {module} as t; t.worker(int(sys.argv[1]), {kind!r})"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    logs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(logs)
