"""What an earlier process has left in the folder of a run, and how to begin anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..train.epoch_log import EPOCHS
from .store import REQUEST, RESULT, TRACEBACK

#: As `files.replacing` names them. Only files that a run itself writes: others may be written without its lock.
_OWN = "|".join(map(re.escape, (REQUEST, EPOCHS, RESULT, TRACEBACK))) + r"|\w+\.safetensors"
_TEMPORARY = re.compile(rf"\.(?:{_OWN})\.(?P<process>\d+)\.tmp")


def remove_temporary(folder: Path) -> None:
    """Remove half-written files of processes that were killed; the lock of the run must be held."""
    for path in folder.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found and not _lives(int(found["process"])):
            path.unlink(missing_ok=True)


def forget_progress(folder: Path) -> None:
    """Remove epochs, weights and state, so that the run begins with its first epoch."""
    for path in (folder / EPOCHS, *folder.glob("*.safetensors")):
        path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Whether another process of this machine has that number; the one that asks is only about to write."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True
