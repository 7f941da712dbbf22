"""A job is a request for a run that can be sent to another process. `standing` says what is left to do for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import AttentionDropError
from ..config.schema import Recipe, build_recipe
from ..files.whole_files import DamagedRecordError
from ..methods.parse import read_method
from ..train.epoch_log import BEST, EPOCHS, LAST
from .folders import run_folder
from .identity import differences, recorded, scored_from, trained_from
from .kinds import FINAL, NAMES
from .store import FORMAT, FORMAT_OF_TAILS, Request, Result, Run, changed_scores, lost_epochs, read_run

#: The lock file that a process holds while it works on a run.
LOCK = ".lock"


class WouldEraseError(AttentionDropError):
    """Finished runs of another recipe would be erased, and `overwrite` does not allow it."""


@dataclass(frozen=True)
class Job:
    """One run to do: recipe, method, seed, kind and folder of the study. Plain data."""

    recipe: dict[str, Any] = field(hash=False)
    method: str
    seed: int
    out: str
    #: Its kind, see `kinds`. Only final runs are given the test part.
    part: str = FINAL
    #: Whether weights are kept once the run is finished.
    keep_weights: bool = True
    trackers: tuple[str, ...] = ()
    #: How many jobs share the machine. It is recorded, because it changes their times.
    at_once: int = 1
    #: Whether this job may erase a finished run of another recipe.
    overwrite: bool = False

    @property
    def final(self) -> bool:
        """Whether it is a final run, which is tested. Other runs serve to choose settings on the validation part."""
        return self.part == FINAL

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return run_folder(Path(self.out), self.method, self.seed, self.part)

    @property
    def label(self) -> str:
        """The name of the job in lines for people."""
        return f"{self.method}, seed {self.seed}" + ("" if self.final else f", {NAMES[self.part]}")

    def settings(self) -> Recipe:
        """The recipe as a `Recipe`."""
        return build_recipe(self.recipe)

    def request(self, checksums: Mapping[str, str]) -> Request:
        """The request to store with the run. The checksum of the test part is left out unless the run is final."""
        given = {part: checksum for part, checksum in checksums.items() if self.final or part != "test"}
        meaning = FORMAT_OF_TAILS if read_method(self.method).has_tail_and_others else FORMAT
        return Request(self.method, self.seed, recorded(self.settings().to_dict()), given, meaning)

    def scored(self, checksums: Mapping[str, str]) -> dict[str, Any]:
        """What decides its scores beside the weights, see `scored_from`."""
        return scored_from(recorded(self.settings().to_dict()), checksums, self.part)

    @property
    def weights(self) -> Path:
        """The file of the weights that are scored."""
        return self.folder / (BEST if self.settings().training.select == "best" else LAST)

    @property
    def epochs(self) -> int:
        """How many epochs it trains, with what its method changes."""
        return read_method(self.method).training(self.settings().training).epochs

    def epochs_done(self) -> int:
        """How many epochs its folder records, for a progress bar."""
        try:
            with (self.folder / EPOCHS).open("rb") as file:
                return sum(1 for _ in file)
        except OSError:
            return 0


@dataclass(frozen=True)
class Standing:
    """What is left to do for a job: nothing (`done`), scoring stored weights (`score`), or training (`train`)."""

    todo: Literal["done", "score", "train"]
    #: The run in its folder.
    run: Run | None = None
    #: The result, if the job is done.
    result: Result | None = None
    #: How the job differs from the run in the folder, in words.
    changes: tuple[str, ...] = ()
    #: Whether the run in the folder must be erased: it is of another recipe, or cannot be read.
    stale: bool = False
    #: Whether that would erase a finished run.
    erases: bool = False
    #: Whether it would be erased because it is damaged, not because it is of another recipe.
    damaged: bool = False
    #: The reason, in words for people.
    why: str | None = None


def finished(jobs: Sequence[Job], checksums: Mapping[str, str]) -> dict[Job, Result]:
    """The results of the jobs that are done."""
    found = {job: standing(job, checksums).result for job in jobs}
    return {job: result for job, result in found.items() if result is not None}


def standing(job: Job, checksums: Mapping[str, str]) -> Standing:
    """Read the folder of a job and decide what is left to do.

    A failed run is tried again. A diverged run is not, since it would diverge again.
    """
    try:
        run = read_run(job.folder)
    except DamagedRecordError as error:
        return Standing("train", stale=True, why=f"{job.label}: run again, since {error}")
    if run is None:
        return Standing("train")
    now, result = job.request(checksums), run.result
    ended = result is not None and result.status != "failed"
    if lost := lost_epochs(run):
        why = f"{job.label}: run again, since {lost}"
        return Standing("train", run, changes=(lost,), stale=True, erases=True, damaged=True, why=why)
    changes = tuple(differences(_trained(run.request, job.part), _trained(now, job.part)))
    if changes:
        why = f"{job.label}: run again, since settings changed ({'; '.join(changes)})"
        return Standing("train", run, changes=changes, stale=True, erases=ended, why=why)
    if result is None or not ended:
        return Standing("train", run)
    if not job.final:
        return Standing("done", run, result.without_test())
    if result.status == "diverged":
        return Standing("done", run, result)
    changes = tuple(changed_scores(run, job.scored(checksums)))
    if not changes and result.test is not None:
        return Standing("done", run, result)
    changes = changes or ("it was not tested",)
    if job.weights.exists():
        return Standing("score", run, changes=changes, why="; ".join(changes))
    why = f"{job.label}: run again, since its scores changed ({'; '.join(changes)}) and its weights are not there"
    return Standing("train", run, changes=changes, stale=True, erases=True, why=why)


def check_erasing(jobs: Sequence[Job], standings: Mapping[Job, Standing]) -> None:
    """Refuse to erase finished runs of another recipe, unless the job has `overwrite`."""
    lost = [job for job in jobs if standings[job].erases and not job.overwrite]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        changes = dict.fromkeys(change for job in lost for change in standings[job].changes)
        what = "damaged" if all(standings[job].damaged for job in lost) else "made with another recipe"
        raise would_erase(f"{lost[0].label}{more} in {lost[0].out}", list(changes), len(lost), what)


#: How many differences an error names.
_SHOWN = 4


def would_erase(
    where: str, changes: Sequence[str], finished: int, what: str = "made with another recipe"
) -> WouldEraseError:
    """The error that names what differs and how many runs would be erased, in one line."""
    runs = "1 finished run" if finished == 1 else f"{finished} finished runs"
    shown = [*changes[:_SHOWN], *([f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else [])]
    return WouldEraseError(
        f"{where}: {what} ({'; '.join(shown)}), {runs} would be erased; use another --out, or --overwrite to train anew"
    )


def clear(folder: Path) -> None:
    """Remove the files of an earlier run, all but the lock, from its folder."""
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _trained(request: Request, kind: str) -> dict[str, Any]:
    return trained_from(request.recipe, request.checksums, kind) | {"format": request.format}
