"""A folder belongs to one recipe. A study of another recipe is refused there, so that no table mixes two recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from ...errors import ArgumentError
from ..files.whole_files import DamagedRecordError
from ..runs.folders import run_folders
from ..runs.identity import differences, recipe_of, trained_from
from ..runs.job import LOCK, Job, WouldEraseError, check_erasing, standing, would_erase
from ..runs.kinds import FINAL
from ..runs.store import read_run
from .plan import Ablation, Comparison, read_study, write_study


def claim(out: Path, study: Comparison | Ablation, jobs: Sequence[Job], overwrite: bool = False) -> None:
    """Write the plan of a study into its folder, before its first run. `jobs` are the jobs that are already known.

    Raises `WouldEraseError` if the folder belongs to a study of another recipe that has finished runs or that another
    process works on, or if a job would erase a finished run. With `overwrite` the new study takes the folder: each old
    run is erased when it is trained again, and until then the report leaves it out.
    """
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / LOCK):
        if not overwrite:
            for plan in _plans(out):
                changes = _changes(plan, study)
                if changes and (finished := _finished(out, study)):
                    raise would_erase(str(out), changes, finished)
                if changes and _is_busy(out):
                    raise WouldEraseError(
                        f"{out}: another process works there with another recipe ({'; '.join(changes)}); "
                        "use another --out, or --overwrite"
                    )
            check_erasing(jobs, {job: standing(job, study.checksums) for job in jobs})
        write_study(out, study)


def renew(out: Path, study: Comparison | Ablation) -> None:
    """Write the plan again when more of it is known. Refused if another command has taken the folder meanwhile."""
    with FileLock(out / LOCK):
        for plan in _plans(out):
            if type(plan) is type(study) and (changes := _changes(plan, study)):
                raise ArgumentError(
                    f"{out}: another command has begun a study with another recipe there ({'; '.join(changes)})"
                )
        write_study(out, study)


def _changes(plan: Comparison | Ablation, study: Comparison | Ablation) -> list[str]:
    return differences(
        trained_from(plan.recipe, plan.checksums, FINAL), trained_from(study.recipe, study.checksums, FINAL)
    )


def _plans(out: Path) -> list[Comparison | Ablation]:
    try:
        found = read_study(out)
    except (ArgumentError, DamagedRecordError):  # there is no plan yet, or a damaged one that will be replaced
        return []
    return [plan for plan in (found.comparison, found.ablation) if plan is not None]


def _finished(out: Path, study: Comparison | Ablation) -> int:
    """How many finished or diverged runs in `out` were made with another recipe than that of `study`."""
    found = 0
    for kind, folder in run_folders(out):
        try:
            run = read_run(folder)
        except DamagedRecordError:
            continue
        if run is not None and run.result is not None and run.result.status != "failed":
            now = trained_from(recipe_of(kind, study.recipe), study.checksums, kind)
            found += bool(differences(trained_from(run.request.recipe, run.request.checksums, kind), now))
    return found


def _is_busy(out: Path) -> bool:
    """Whether some process works on one of the runs."""
    for _, folder in run_folders(out):
        try:
            with FileLock(folder / LOCK, blocking=False):
                pass
        except Timeout:
            return True
    return False
