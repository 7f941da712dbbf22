"""Let worker processes end when the command that started them ends, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

#: The exit status of a killed process. Nobody is left to read it.
_KILLED = 137


def end_with_parent() -> None:
    """Call this in a worker process: it stops at once when its parent is gone, even if the parent was killed.

    The parent holds one end of a pipe, which the system closes when the parent ends. A thread waits at the other end.
    A worker may stop anywhere, since it never leaves half-written files and the system releases its lock.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), name="end-with-parent", daemon=True).start()


def _watch(parent: Any) -> None:
    parent.join()
    os._exit(_KILLED)
