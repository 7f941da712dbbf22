"""The studies that are left, in their order: docs/evidence/queue.yaml. One command goes on with all of them.

Each study is a slice of `evidence.py run`. Studies whose runs have all ended pass in seconds, so the command can be
given again and again. A study that fails, such as one whose data is missing, does not stop the others.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentiondrop.errors import ArgumentError, bad_argument
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.files.typed_settings import build_settings
from attentiondrop.experiments.files.yaml_text import read_yaml_file
from attentiondrop.experiments.runs.folders import run_folders
from attentiondrop.experiments.runs.pool import Where
from attentiondrop.experiments.runs.store import read_run
from attentiondrop.experiments.studies.ablate import jobs_of_ablation
from attentiondrop.experiments.studies.compare import jobs_of_comparison
from attentiondrop.experiments.studies.plan import COMPARISON, Entry, read_study
from attentiondrop.experiments.train.epoch_log import LAST


@dataclass(frozen=True)
class Queued:
    """One study of the queue.

    >>> Queued("transfer", "evidence/transfer", "c10.npz", checkpoint="c100").settings(Path("DATA"))
    ['data.root=DATA/c10.npz', 'model.checkpoint=DATA/c100']
    """

    #: The name of its file of records, without the ending.
    name: str
    recipe: str
    #: Its file or folder, within the folder with all data.
    data: str
    size: str | None = None
    #: Instead of those of the recipe.
    methods: list[str] | None = None
    #: Methods that have runs, and get no more. They keep their rows.
    stopped: list[str] | None = None
    #: Methods that go on when all runs of the others have ended.
    later: list[str] | None = None
    #: Whether it is the ablations of the recipe, and not a comparison.
    ablate: bool = False
    #: Whether its table has no GPU time, so that no steps are timed at its end.
    no_costs: bool = False
    #: Pretrained weights that it begins with, within the folder with all data.
    checkpoint: str | None = None
    #: Where the weights of its only run go, within the folder with all data.
    keeps: str | None = None
    #: What has to be known before its first run. Until then, it is left out.
    waits_for: str | None = None

    def settings(self, data: Path) -> list[str]:
        """The settings that depend on where the data is."""
        checkpoint = [] if self.checkpoint is None else [f"model.checkpoint={data / self.checkpoint}"]
        return [f"data.root={data / self.data}", *checkpoint]

    def read(self, data: Path, more: list[str]) -> Recipe:
        """Its recipe; `more` are settings in addition."""
        return read_recipe(self.recipe, self.size, [*self.settings(data), *more])

    def command(self, more: list[str]) -> str:
        """The command that runs it alone. `more` are settings in addition.

        The place of its data is not a part of it, and methods that are stopped are only in the queue.
        """
        size = [] if self.size is None else ["--size", self.size]
        methods = [] if self.methods is None else ["--methods", *self.methods]
        settings = ["--set", *more] if more else []
        words = ["run", self.recipe, *size, *settings, *methods, *(["--ablate"] if self.ablate else [])]
        return shlex.join(["benchmarks/evidence.py", *words])

    def without(self, folder: Path) -> list[Entry]:
        """The methods that are stopped, as the plan in a folder has them."""
        if not self.stopped:
            return []
        found = planned(folder)
        if unknown := [name for name in self.stopped if name not in found]:
            raise bad_argument(f"{self.name}: stopped", f"methods of its records ({', '.join(found) or '-'})", unknown)
        return [found[name] for name in self.stopped]

    def first(self, recipe: Recipe) -> list[str]:
        """Its methods without those that go on later."""
        methods = self.methods or recipe.methods
        if unknown := [name for name in self.later or [] if name not in methods]:
            raise bad_argument(f"{self.name}: later", f"methods of the study ({', '.join(methods)})", unknown)
        return [name for name in methods if name not in (self.later or [])]

    def without_later(self, folder: Path) -> list[Entry]:
        """The methods that get no runs in the beginning: those that are stopped, and those that go on later."""
        found = planned(folder)
        return [*self.without(folder), *(found[name] for name in self.later or [] if name in found)]


def planned(folder: Path) -> dict[str, Entry]:
    """The methods of the comparison in a folder; none if there is no plan yet."""
    comparison = read_study(folder).comparison if (folder / COMPARISON).exists() else None
    return {entry.name: entry for entry in ([] if comparison is None else comparison.methods)}


def read_queue(file: Path) -> list[Queued]:
    """The studies of a file."""
    content: Any = read_yaml_file(file)
    if not isinstance(content, list):
        raise bad_argument(str(file), "a list of studies", content)
    found = [build_settings(Queued, each, f"study {place}") for place, each in enumerate(content, start=1)]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise bad_argument(f"{file}: name", "another one for each study", twice)
    return found


def progress(one: Queued, recipe: Recipe, folder: Path) -> tuple[int, int]:
    """How many runs of a study have ended in a folder, and how many it has in all.

    Runs of other methods, such as those that are stopped or have left the study, do not count. It only looks which
    results are there, so it works on any machine.
    """
    if one.ablate:
        jobs = jobs_of_ablation(recipe, {}, recipe.seeds, folder, Where())
    else:
        jobs = jobs_of_comparison(recipe, one.methods or recipe.methods, recipe.seeds, folder, Where())
    asked = {job for group in jobs.values() for job in group}
    methods = {job.method for job in asked}  # with all trials of those that are tuned
    runs = (read_run(found) for _, found in run_folders(folder))
    ended = sum(run is not None and run.result is not None and run.request.method in methods for run in runs)
    return ended, len(asked)


def keep_weights(folder: Path, file: Path) -> None:
    """Copy the weights of the only run in a folder, unless they are there already. Records have no weights."""
    found = list(folder.glob(f"runs/*/*/{LAST}"))
    if not found and file.exists():
        return
    if len(found) != 1:
        raise ArgumentError(
            f"keeps: expected one run that has just been trained, found {len(found)}. Without its records, it is "
            "trained again"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found[0], file)
