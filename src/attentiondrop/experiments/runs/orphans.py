"""Worker processes that end with the command that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

#: What the shell reports of a process that was killed; nobody is left to read it.
_KILLED = 137


def end_with_parent() -> None:
    """In a worker process: stop at once when the parent is gone, even if it was killed and could say nothing.

    The parent holds one end of a pipe that the system closes with it, and a thread waits at the other. What a worker
    writes is whole or not there at all, so it may stop anywhere; the lock of its run goes with it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), name="end-with-parent", daemon=True).start()


def _watch(parent: Any) -> None:
    parent.join()
    os._exit(_KILLED)
