"""Runs in the folder of a study that its numbers do not use: made with another recipe, or not part of the study."""

from __future__ import annotations

from ..files.whole_files import DamagedRecordError
from ..runs.folders import run_folder, run_folders
from ..runs.kinds import VARIED
from ..runs.store import read_run
from .outcomes import other_recipe
from .summary import LeftOut, Summary


def left_out(summary: Summary) -> tuple[LeftOut, ...]:
    """All runs that the numbers do not use, in the order of their folders."""
    study = summary.study
    shown = {
        run_folder(study.folder, each.method, each.seed, each.part) for each in summary.outcomes if not each.changes
    }
    found = []
    for kind, folder in run_folders(study.folder):
        if folder in shown:
            continue
        plan = (study.ablation if kind == VARIED else study.comparison) or summary.plan
        try:
            run = read_run(folder)
            changes = [] if run is None else other_recipe(run, plan, kind)
        except DamagedRecordError:
            changes = ["it cannot be read"]
        found.append(LeftOut(folder.relative_to(study.folder).as_posix(), tuple(changes)))
    return tuple(found)
