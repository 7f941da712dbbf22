"""The outcome of each run that a study asks for, even if the run does not exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..files.whole_files import DamagedRecordError
from ..runs.identity import differences, recipe_of, scored_from, trained_from
from ..runs.kinds import FINAL
from ..runs.store import Result, Run, changed_scores
from ..studies.plan import Ablation, Comparison, Study

#: The statuses without a result that counts: the study still has to run these.
UNDONE = ("unfinished", "missing", "damaged", "of another recipe")
STATUSES = ("finished", "diverged", "failed", *UNDONE)


@dataclass(frozen=True)
class Outcome:
    """One method with one seed. `run` is None if there is no run that counts: missing, damaged or of another recipe."""

    method: str
    seed: int
    part: str
    run: Run | None
    #: Why the run could not be read.
    damage: str | None = None
    #: How the run in the folder differs from the recipe of the study, in words. Such a run does not count.
    changes: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """One of `STATUSES`."""
        if self.damage is not None:
            return "damaged"
        if self.changes:
            return "of another recipe"
        if self.run is None:
            return "missing"
        return "unfinished" if self.run.result is None else self.run.result.status

    @property
    def result(self) -> Result | None:
        """The recorded result, also of a run that diverged or failed."""
        return None if self.run is None else self.run.result

    @property
    def detail(self) -> str:
        """Why a run has not finished, in words."""
        if self.damage is not None:
            return self.damage
        if self.changes:
            return f"the run in the folder is of another recipe: {'; '.join(self.changes)}"
        if self.run is None:
            return "no such run in the folder yet"
        if self.run.result is None:
            return f"started, {_epochs(len(self.run.epochs))} recorded"
        after = f"after {_epochs(self.run.result.epochs)}"
        if self.run.result.status == "diverged":
            return f"the loss stopped being a number {after}" + _colon(self.run.result.error)
        return f"{after}{_colon(self.run.result.error)}"


def outcome(study: Study, plan: Comparison | Ablation, method: str, seed: int, part: str = FINAL) -> Outcome:
    """The outcome of one run of a plan. A run that cannot be read is an outcome too, so the others can be reported.

    A run of another recipe is not shown. For tuning and ablation runs the test scores are removed: older versions
    recorded them.
    """
    try:
        run = study.run(method, seed, part)
    except DamagedRecordError as error:
        return Outcome(method, seed, part, None, str(error))
    if run is None:
        return Outcome(method, seed, part, None)
    if changes := other_recipe(run, plan, part):
        return Outcome(method, seed, part, None, changes=tuple(changes))
    if run.result is not None and (part != FINAL or isinstance(plan, Ablation)):
        run = dataclasses.replace(run, result=run.result.without_test())
    return Outcome(method, seed, part, run)


def other_recipe(run: Run, plan: Comparison | Ablation, part: str) -> list[str]:
    """How a run differs from the plan, in words: recorded -> planned. Empty if the run belongs to the plan."""
    recipe = recipe_of(part, plan.recipe)
    then = trained_from(run.request.recipe, run.request.checksums, part)
    changes = differences(then, trained_from(recipe, plan.checksums, part))
    if changes or part != FINAL or run.result is None or run.result.status != "finished":
        return changes
    changes = changed_scores(run, scored_from(recipe, plan.checksums, part))
    return changes or (["it was not tested"] if run.result.test is None else [])


def by_seed(outcomes: Sequence[Outcome], value: Callable[[Result], float | None]) -> dict[int, float]:
    """Seed -> number, for each finished run that has the number."""
    numbers = {
        each.seed: value(each.result) for each in outcomes if each.result is not None and each.status == "finished"
    }
    return {seed: found for seed, found in numbers.items() if found is not None}


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _colon(error: str | None) -> str:
    return f": {error}" if error else ""
