"""A run as a request that can be sent to another process, and what became of the folder it belongs to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import DamagedRecordError
from .recipe import Recipe
from .record import EPOCHS, Request, Result, read_run
from .settings import build_settings
from .study import FINAL, run_folder


@dataclass(frozen=True)
class Job:
    """One run: recipe, method, seed, and where it is kept. Plain data."""

    recipe: dict[str, Any] = field(hash=False)
    method: str
    seed: int
    out: str
    part: str = FINAL
    #: Whether weights are kept once the run is finished.
    keep_weights: bool = True
    trackers: tuple[str, ...] = ()
    #: How many jobs share the machine, which their times should be read with.
    at_once: int = 1

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return run_folder(Path(self.out), self.method, self.seed, self.part)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.method}, seed {self.seed}" + (", tuning" if self.part != FINAL else "")

    def settings(self) -> Recipe:
        """The recipe, typed."""
        return build_settings(Recipe, self.recipe)

    def request(self, checksums: dict[str, str]) -> Request:
        """What the run is made of, as it is stored."""
        return Request(self.method, self.seed, self.settings().identity(), checksums)

    def epochs_done(self) -> int:
        """How many epochs its folder shows, for a progress bar."""
        try:
            with (self.folder / EPOCHS).open("rb") as file:
                return sum(1 for _ in file)
        except OSError:
            return 0


def kept_result(job: Job, checksums: dict[str, str]) -> tuple[Result | None, str | None]:
    """The result of a job that is done already and still counts, and a word on why one does not.

    A run that failed is tried again, one that diverged would diverge again.
    """
    try:
        run = read_run(job.folder)
    except DamagedRecordError as error:
        return None, f"{job.label}: run again, since {error}"
    if run is None:
        return None, None
    if changes := run.request.changes(job.request(checksums)):
        return None, f"{job.label}: run again, since settings changed ({'; '.join(changes)})"
    if run.result is None or run.result.status == "failed":
        return None, None
    return run.result, None


def clear_stale(job: Job, checksums: dict[str, str]) -> None:
    """Remove what an earlier run with other settings, or a damaged one, has left in the folder."""
    try:
        run = read_run(job.folder)
        stale = run is not None and bool(run.request.changes(job.request(checksums)))
    except DamagedRecordError:
        stale = True
    if stale:
        for path in job.folder.iterdir():
            if path.name != LOCK:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


#: Held by the process that works on a run.
LOCK = ".lock"
