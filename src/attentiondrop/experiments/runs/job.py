"""A run as a request that can be sent to another process, and what became of the folder it belongs to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import AttentionDropError
from ..config.schema import Recipe, build_recipe
from ..files.whole_files import DamagedRecordError
from ..train.epoch_log import BEST, EPOCHS, LAST
from .folders import run_folder
from .identity import differences, recorded, scored_from, trained_from
from .kinds import FINAL, NAMES
from .store import Request, Result, Run, read_run, scored_by

#: Held by the process that works on a run.
LOCK = ".lock"


class WouldEraseError(AttentionDropError):
    """Finished runs of another recipe are in the way, and nobody said that they may go."""


@dataclass(frozen=True)
class Job:
    """One run: recipe, method, seed, its kind, and where it is kept. Plain data."""

    recipe: dict[str, Any] = field(hash=False)
    method: str
    seed: int
    out: str
    #: Its kind, see `kinds`: what is not final is never given the test part.
    part: str = FINAL
    #: Whether weights are kept once the run is finished.
    keep_weights: bool = True
    trackers: tuple[str, ...] = ()
    #: How many jobs share the machine, which their times should be read with.
    at_once: int = 1
    #: Whether a finished run of another recipe may be erased for it.
    overwrite: bool = False

    @property
    def final(self) -> bool:
        """Whether it is tested: all others choose something, on the validation part."""
        return self.part == FINAL

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return run_folder(Path(self.out), self.method, self.seed, self.part)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.method}, seed {self.seed}" + ("" if self.final else f", {NAMES[self.part]}")

    def settings(self) -> Recipe:
        """The recipe, typed."""
        return build_recipe(self.recipe)

    def request(self, checksums: Mapping[str, str]) -> Request:
        """What the run is made of, as it is stored; `checksums` may name parts of the data that it is not given."""
        given = {part: checksum for part, checksum in checksums.items() if self.final or part != "test"}
        return Request(self.method, self.seed, recorded(self.settings().to_dict()), given)

    def scored(self, checksums: Mapping[str, str]) -> dict[str, Any]:
        """What its scores will rest on beside the weights."""
        return scored_from(recorded(self.settings().to_dict()), checksums, self.part)

    @property
    def weights(self) -> Path:
        """The weights that are scored."""
        return self.folder / (BEST if self.settings().training.select == "best" else LAST)

    def epochs_done(self) -> int:
        """How many epochs its folder shows, for a progress bar."""
        try:
            with (self.folder / EPOCHS).open("rb") as file:
                return sum(1 for _ in file)
        except OSError:
            return 0


@dataclass(frozen=True)
class Standing:
    """What is left to do for a job: nothing (`done`), scoring stored weights (`score`), or training (`train`)."""

    todo: Literal["done", "score", "train"]
    #: What its folder holds.
    run: Run | None = None
    #: Of a job that is done.
    result: Result | None = None
    #: What differs from the run in the folder, in words.
    changes: tuple[str, ...] = ()
    #: Whether what the folder holds belongs to another recipe, or cannot be read, and has to go.
    stale: bool = False
    #: Whether that is a finished run.
    erases: bool = False
    #: For people.
    why: str | None = None


def standing(job: Job, checksums: Mapping[str, str]) -> Standing:
    """Look at the folder of a job.

    A run that failed is tried again, one that diverged would diverge again.
    """
    try:
        run = read_run(job.folder)
    except DamagedRecordError as error:
        return Standing("train", stale=True, why=f"{job.label}: run again, since {error}")
    if run is None:
        return Standing("train")
    now, result = job.request(checksums), run.result
    ended = result is not None and result.status != "failed"
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
    changes = tuple(differences(scored_by(run), job.scored(checksums)))
    if not changes and result.test is not None:
        return Standing("done", run, result)
    changes = changes or ("it was not tested",)
    if job.weights.exists():
        return Standing("score", run, changes=changes, why="; ".join(changes))
    why = f"{job.label}: run again, since its scores changed ({'; '.join(changes)}) and its weights are not there"
    return Standing("train", run, changes=changes, stale=True, erases=True, why=why)


def check_erasing(jobs: Sequence[Job], standings: Mapping[Job, Standing]) -> None:
    """Refuse to train over finished runs of another recipe, unless that was asked for."""
    lost = [job for job in jobs if standings[job].erases and not job.overwrite]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        changes = dict.fromkeys(change for job in lost for change in standings[job].changes)
        raise would_erase(f"{lost[0].label}{more} in {lost[0].out}", list(changes), len(lost))


def would_erase(where: str, changes: Sequence[str], finished: int) -> WouldEraseError:
    """What is in the way, in one line."""
    runs = "1 finished run" if finished == 1 else f"{finished} finished runs"
    return WouldEraseError(
        f"{where}: made with another recipe ({'; '.join(changes)}), {runs} would go; "
        "use another --out, or --overwrite to train anew"
    )


def clear(folder: Path) -> None:
    """Remove what an earlier run with other settings, or a damaged one, has left in the folder."""
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _trained(request: Request, kind: str) -> dict[str, Any]:
    return trained_from(request.recipe, request.checksums, kind) | {"format": request.format}
