"""A run where files of more than a few kilobytes cannot be written: for a process of its own."""

from __future__ import annotations

import resource
import sys

from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job


def run(job: Job) -> None:
    sys.dont_write_bytecode = True  # Under that limit, Python would leave truncated byte code behind for everybody.
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
    try:
        execute(job)
    except OSError as error:
        sys.exit(f"refused: {error}")
