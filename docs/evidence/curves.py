"""What the epochs of the confirming runs of study 1 say: how soon a run is good (P12), and its training loss (P13).

`results.csv` has only the end of a run. The epochs are in the records (`metrics.jsonl` of each run).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import verdicts
from record_texts import record_texts

from attentiondrop.experiments.analysis.intervals import Difference, corrected, paired_difference, signed

RECORDS = Path(__file__).parent / "records" / "cifar10-20pct-confirm.tar.gz"
#: A run is good when its validation accuracy reaches this share of where `none` ends with the same seed.
SHARE = 0.95
#: Every claim that compares two methods rests on so many seeds.
SEEDS = 10
BASELINE, WITH_KL = "none", "blur+consistency"
#: The methods of P12. Each of them, and `none`, stands for the tuned one that was confirmed.
CONVERGING = ("hard", "blur", WITH_KL)

#: Seed -> a number.
Scores = dict[int, float]


@dataclass(frozen=True)
class Curve:
    """The epochs of a run. Both are by epoch: accuracy where it was validated, and the mean loss of training steps."""

    accuracy: dict[int, float]
    loss: dict[int, float]
    #: GPU seconds of an epoch: its steps x the time of one step, measured alone on the GPU.
    seconds: float

    @property
    def end(self) -> int:
        """The last epoch."""
        return max(self.loss)


#: Seed -> the run.
Runs = dict[int, Curve]


@cache
def read(records: Path) -> dict[str, Runs]:
    """Every method with its finished runs; nothing if there are no records."""
    texts = record_texts(records)
    costs = json.loads(texts.get("costs.json", "{}"))
    found: dict[str, Runs] = {}
    for name, text in texts.items():
        folder, _, kind = name.rpartition("/")
        if kind == "result.json" and (result := json.loads(text))["status"] == "finished":
            request = json.loads(texts[f"{folder}/run.json"])
            epochs = [json.loads(line) for line in texts[f"{folder}/metrics.jsonl"].splitlines()]
            seconds = costs[request["method"]]["seconds"] * result["steps"] / result["epochs"]
            found.setdefault(request["method"], {})[request["seed"]] = curve(epochs, seconds)
    return found


def curve(epochs: list[dict[str, Any]], seconds: float) -> Curve:
    """The run with these lines of `metrics.jsonl`."""
    return Curve(
        {line["epoch"]: line["validation"]["accuracy"] for line in epochs if line["validation"] is not None},
        {line["epoch"]: line["train_loss"] for line in epochs},
        seconds,
    )


# --- P12: epochs until a run is good ---------------------------------------------------------------------------------


def first_validated(run: Curve, level: float) -> float | None:
    """The first validated epoch at which the accuracy reaches a level; None if it never does."""
    return next((epoch for epoch, accuracy in sorted(run.accuracy.items()) if accuracy >= level), None)


def interpolated(run: Curve, level: float) -> float | None:
    """The same on straight lines between validated epochs."""
    before: tuple[int, float] | None = None
    for epoch, accuracy in sorted(run.accuracy.items()):
        if accuracy >= level:
            if before is None:
                return epoch
            return before[0] + (epoch - before[0]) * (level - before[1]) / (accuracy - before[1])
        before = (epoch, accuracy)
    return None


def epochs_needed(runs: Runs, baseline: Runs, rule: Callable[[Curve, float], float | None]) -> Scores:
    """The epochs until a run is good, for the seeds that both have; without runs that never are."""
    found: Scores = {}
    for seed in sorted(runs.keys() & baseline.keys()):
        end = baseline[seed]
        epochs = rule(runs[seed], SHARE * end.accuracy[end.end])
        if epochs is not None:
            found[seed] = epochs
    return found


def in_seconds(epochs: Scores, runs: Runs) -> Scores:
    """The GPU seconds of so many epochs."""
    return {seed: count * runs[seed].seconds for seed, count in epochs.items()}


@dataclass(frozen=True)
class Convergence:
    """How many epochs a method needs, compared with `none`."""

    name: str
    ours: Scores
    theirs: Scores
    #: Runs that never were good.
    missing: int
    #: Differences after Holm's correction: epochs, the same interpolated, GPU seconds of the epochs.
    epochs: Difference | None
    smooth: Difference | None
    seconds: Difference | None

    @property
    def verdict(self) -> str:
        """The protocol: reproduced if there are fewer epochs and the interval excludes zero, otherwise not."""
        return verdicts.NOT_RESOLVED if self.missing else below_zero(self.epochs)

    def row(self) -> list[str]:
        """The row of the table."""
        head = f"`{self.name}` - `{BASELINE}`"
        if self.epochs is None:
            return [head, "", "", "", "", "", "", self.verdict]
        means = [mean_of(scores, self.epochs, 1) for scores in (self.theirs, self.ours)]
        apart = [told(each, 1) for each in (self.epochs, self.smooth, self.seconds)]
        unreached = f": {self.missing} runs never get there" if self.missing else ""
        return [head, str(len(self.epochs.seeds)), *means, *apart, self.verdict + unreached]


CONVERGENCE_HEADINGS = (
    "comparison | seeds | epochs of `none` | epochs of the method | difference, epochs [after Holm] | "
    "if interpolated [after Holm] | difference, GPU seconds [after Holm] | verdict"
)


def convergence(labels: Mapping[str, str | None]) -> list[Convergence]:
    """P12. `labels`: the confirmed method that stands for each name, None if there is none."""
    none = runs_of(BASELINE, labels)
    theirs = epochs_needed(none, none, first_validated)
    ours, apart = {}, []
    for name in CONVERGING:
        runs = runs_of(name, labels)
        first = ours[name] = epochs_needed(runs, none, first_validated)
        seconds = paired_difference(in_seconds(first, runs), in_seconds(theirs, none))
        smooth = paired_difference(epochs_needed(runs, none, interpolated), epochs_needed(none, none, interpolated))
        apart.append((paired_difference(first, theirs), smooth, seconds))
    # Each column is a family of its own.
    after = zip(*(corrected(column) for column in zip(*apart, strict=True)), strict=True)
    return [
        Convergence(name, ours[name], theirs, len(runs_of(name, labels).keys() & none.keys()) - len(ours[name]), *found)
        for name, found in zip(CONVERGING, after, strict=True)
    ]


# --- P13: the loss of training ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingLoss:
    """The mean loss of the steps of the last epoch, in train mode: blur with its KL, and `none`, which has no KL."""

    ours: Scores
    theirs: Scores
    difference: Difference | None
    #: From this epoch to the end, the mean over the seeds is below that of `none`; None if it is not so at the end.
    lower_from: int | None

    @property
    def verdict(self) -> str:
        """Reproduced if the sum with the KL is lower already: the KL is not negative, so the task loss is lower, too.

        Otherwise these records cannot tell, because they have no task loss.
        """
        found = below_zero(self.difference)
        return verdicts.NOT_RESOLVED if found == verdicts.NOT_REPRODUCED else found

    def row(self) -> list[str]:
        """The row of the table."""
        head = f"`{WITH_KL}` - `{BASELINE}`"
        if self.difference is None:
            return [head, "", "", "", "", "", self.verdict]
        means = [mean_of(scores, self.difference, 3) for scores in (self.theirs, self.ours)]
        since = "never" if self.lower_from is None else f"epoch {self.lower_from}"
        seeds = str(len(self.difference.seeds))
        return [head, seeds, *means, told(self.difference, 3), since, self.verdict]


TRAINING_LOSS_HEADINGS = (
    "comparison | seeds | task loss of `none` | task loss + KL of the method | difference [95 %] | "
    "lower from, in the mean | verdict"
)


def training_loss(labels: Mapping[str, str | None]) -> TrainingLoss:
    """P13. `labels` as for `convergence`."""
    ours, theirs = runs_of(WITH_KL, labels), runs_of(BASELINE, labels)
    last, other = ({seed: run.loss[run.end] for seed, run in runs.items()} for runs in (ours, theirs))
    (found,) = corrected([paired_difference(last, other)])
    since = None
    if found is not None:
        for epoch in range(theirs[found.seeds[0]].end, 0, -1):
            if statistics.fmean(ours[seed].loss[epoch] - theirs[seed].loss[epoch] for seed in found.seeds) >= 0:
                break
            since = epoch
    return TrainingLoss(last, other, found, since)


# --- both ------------------------------------------------------------------------------------------------------------


def runs_of(name: str, labels: Mapping[str, str | None]) -> Runs:
    """The confirmed runs of the method that stands for a name."""
    return read(RECORDS).get(labels.get(name) or "", {})


def below_zero(found: Difference | None) -> str:
    """Whether the corrected interval is below zero, as the protocol asks. Every other outcome is a failure."""
    if found is None or len(found.seeds) < SEEDS:
        return verdicts.NOT_MEASURED
    if found.holm_interval is None:
        return verdicts.NOT_RESOLVED
    return verdicts.REPRODUCED if found.holm_interval.high < 0 else verdicts.NOT_REPRODUCED


def mean_of(scores: Scores, found: Difference, digits: int) -> str:
    """The mean over the seeds of a difference."""
    return f"{statistics.fmean(scores[seed] for seed in found.seeds):.{digits}f}"


def told(found: Difference | None, digits: int) -> str:
    """A difference with its corrected interval."""
    if found is None:
        return ""
    return f"{signed(found.mean, digits)} " + ("-" if found.holm_interval is None else found.holm_interval.text(digits))
