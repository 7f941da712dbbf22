"""What became of each run that a study asked for, whether or not it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .files import DamagedRecordError
from .record import Result, Run
from .study import FINAL, Study

#: What an outcome may be: the last three were asked for and have no result (yet).
STATUSES = ("finished", "diverged", "failed", "unfinished", "missing", "damaged")


@dataclass(frozen=True)
class Outcome:
    """One method with one seed. `run` is None where there is none, or none that can be read."""

    method: str
    seed: int
    part: str
    run: Run | None
    #: Why the run could not be read.
    damage: str | None = None

    @property
    def status(self) -> str:
        """One of `STATUSES`."""
        if self.damage is not None:
            return "damaged"
        if self.run is None:
            return "missing"
        return "unfinished" if self.run.result is None else self.run.result.status

    @property
    def result(self) -> Result | None:
        """What was recorded at the end, also of a run that diverged or failed."""
        return None if self.run is None else self.run.result

    @property
    def detail(self) -> str:
        """What is known about a run that has not finished."""
        if self.damage is not None:
            return self.damage
        if self.run is None:
            return "no such run in the folder yet"
        if self.run.result is None:
            return f"started, {_epochs(len(self.run.epochs))} recorded"
        after = f"after {_epochs(self.run.result.epochs)}"
        if self.run.result.status == "diverged":
            return f"the loss stopped being a number {after}" + _colon(self.run.result.error)
        return f"{after}{_colon(self.run.result.error)}"


def outcome(study: Study, method: str, seed: int, part: str = FINAL) -> Outcome:
    """Look at one run; one that cannot be read does not keep the others from being reported."""
    try:
        return Outcome(method, seed, part, study.run(method, seed, part))
    except DamagedRecordError as error:
        return Outcome(method, seed, part, None, str(error))


def by_seed(outcomes: Sequence[Outcome], value: Callable[[Result], float | None]) -> dict[int, float]:
    """One number for each finished run that has it."""
    numbers = {
        each.seed: value(each.result) for each in outcomes if each.result is not None and each.status == "finished"
    }
    return {seed: found for seed, found in numbers.items() if found is not None}


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _colon(error: str | None) -> str:
    return f": {error}" if error else ""
