"""Parts of sentences about a study: differences, times and means, from its published results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import studies
import tables

from attentiondrop.experiments.analysis.intervals import signed


def picked(study: studies.Study, is_one: Callable[[studies.Runs], bool]) -> str:
    """The tested method that the validation part prefers, written in full."""
    found = study.pick(is_one)
    if found is None:
        raise SystemExit(f"{study.folder}: a method is missing that the sentences are about")
    return found.label


def method(study: tables.Study, label: str) -> tables.Method:
    """The method that is written so in full."""
    return next(one for one in study.methods if one.label == label)


def difference(study: tables.Study, label: str, digits: int = 1) -> str:
    """To the baseline of the study, with its corrected interval: `+2.7 points [+2.1, +3.4]`."""
    found = method(study, label).difference
    if found is None or found.holm_interval is None:
        raise SystemExit(f"expected a difference with an interval for {label}")
    shown = found.times(study.primary.factor)
    unit = study.primary.difference_unit or study.primary.label
    return f"{signed(shown.mean, digits)} {unit} {shown.holm_interval.text(digits)}"


def is_better(study: tables.Study, label: str) -> bool:
    """Whether it is better than the baseline of the study, after correction."""
    found = method(study, label).difference
    return found is not None and found.marked and found.mean > 0


def time_ratio(study: tables.Study, label: str, other: str, digits: int = 2) -> str:
    """GPU seconds of a run to those of another method."""
    ours, theirs = (statistics.fmean(method(study, one).columns["gpu_seconds"]) for one in (label, other))
    return f"{ours / theirs:.{digits}f}"


def calibration(folder: Path, ours: str, r_drop: str, longer: str) -> str:
    """The calibration error of our method, and its differences to three others, corrected as accuracies are."""
    to_none, to_r_drop, to_longer = (tables.read(folder, one, "ece") for one in ("none", r_drop, longer))
    found = method(to_none, ours).difference
    if found is None or not found.marked or found.mean < 0:
        raise SystemExit(f"{folder}: the calibration of {ours} is not worse than that of none: write the pages anew")
    error = {label: f"{percent(to_none, label)} %" for label in (ours, "none", r_drop, longer)}
    return (
        f"The calibration error (ECE) of our method is {error[ours]}. The difference to `none` ({error['none']}) is "
        f"{difference(to_none, ours)}, to R-Drop ({error[r_drop]}) {difference(to_r_drop, ours)}, to twice the epochs "
        f"({error[longer]}) {difference(to_longer, ours)}. Less is better."
    )


def percent(study: tables.Study, label: str) -> str:
    """The mean score of a method, in the unit of its table."""
    return f"{study.primary.factor * statistics.fmean(method(study, label).scores.values()):.1f}"
