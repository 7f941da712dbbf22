"""Remove what an earlier process left in the folder of a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..train.epoch_log import EPOCHS
from .store import REQUEST, RESULT, TRACEBACK

#: Temporary files as `whole_files.replacing` names them. Only those of a run itself, which are written under its lock.
_OWN = "|".join(map(re.escape, (REQUEST, EPOCHS, RESULT, TRACEBACK))) + r"|\w+\.safetensors"
_TEMPORARY = re.compile(rf"\.(?:{_OWN})\.(?P<process>\d+)\.tmp")


def remove_temporary(folder: Path) -> None:
    """Remove half-written files of processes that were killed. The caller must hold the lock of the run."""
    for path in folder.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found and not _lives(int(found["process"])):
            path.unlink(missing_ok=True)


def forget_progress(folder: Path) -> None:
    """Remove epochs, weights and state, so that the run starts again from its first epoch."""
    for path in (folder / EPOCHS, *folder.glob("*.safetensors")):
        path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """Whether another process of this machine has this id. Our own id does not count: we have written nothing yet."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True
