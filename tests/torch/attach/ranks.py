"""Run a function of a test module in two processes, as two ranks."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import forks


def run_two_ranks(file: str, kind: str) -> None:
    """Call `worker(rank, kind)` of a test file in each of two processes; what fails there fails here."""
    done = forks.two_ranks(_rank, file, kind)
    assert all(status == 0 for status, _ in done), "\n".join(text for _, text in done)


def _rank(file: str, kind: str) -> None:
    sys.path.insert(0, str(Path(file).parent))
    importlib.import_module(Path(file).stem).worker(int(os.environ["RANK"]), kind)
