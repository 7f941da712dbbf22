"""What study 1 found, as sentences whose numbers come from its published results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import claims
import tables

from attentiondrop.experiments.analysis.intervals import signed

FOLDER = Path(__file__).parent / "results" / claims.SCARCE.folder
#: The controls of our best method, with the seeds of the confirming table.
CONTROLS = Path(__file__).parent / "results" / "cifar10-20pct-controls"
WEAK_ATTACKS = Path(__file__).parents[2] / "benchmarks" / "results" / "weak-attacks-h200-torch2.11.md"


def sentences() -> dict[str, str]:
    """Name -> sentence. Intervals are those after Holm's correction over all comparisons with the same method."""
    ours = _picked(claims.is_ours)
    r_drop, longer = (_picked(claims.is_called(name)) for name in ("r-drop", "longer"))
    hard, blur = (_picked(claims.is_of_the_paper(name)) for name in ("hard", "blur"))
    to_none, to_r_drop, to_longer = (_study(one) for one in (None, r_drop, longer))
    over_none = {label: _difference(to_none, label) for label in (ours, longer, hard, blur)}
    error = {label: _mean(to_none, label, "test_ece") for label in (ours, "none", r_drop)}
    if any(_method(to_none, label).difference.marked for label in (hard, blur)):
        raise SystemExit(f"{FOLDER}: hard masking or blur alone differs from none: write its sentence anew")
    most = max(to_none.methods, key=lambda one: statistics.fmean(one.scores.values())).label
    return {
        "longer": f"**More epochs gain more{' than any method' if most == longer else ''}.** `none` with twice the "
        f"epochs gains {over_none[longer]}.",
        "best": f"The best of our methods is `{ours}`. It gains {over_none[ours]} over `none`, and "
        f"{_difference(to_r_drop, ours)} over tuned R-Drop at {_time(to_none, ours, r_drop)} of its GPU time. Its "
        f"difference to twice the epochs is {_difference(to_longer, ours)}, at {_time(to_none, ours, longer)} of their "
        "GPU time.",
        "alone": f"Hard masking alone ({over_none[hard]}) and blur alone ({over_none[blur]}) show no gain.",
        "calibration": f"The calibration error (ECE) of our best method is {error[ours]} %. That of `none` is "
        f"{error['none']} %, that of R-Drop {error[r_drop]} %. Less is better.",
    }


def controls() -> dict[str, str]:
    """What the controls tell of our best method: name -> sentence."""
    ours = _picked(claims.is_ours)
    alone = ours.partition("+")[0]
    labels = [one.label for one in _study(None, CONTROLS).methods]
    (longer,) = (label for label in labels if label.startswith("longer("))
    (two,) = (label for label in labels if label.startswith(f"{alone}+consistency(weight=0.0"))
    to_none, to_longer, to_two, to_alone = (_study(one, CONTROLS) for one in (None, longer, two, alone))
    if not _is_better(to_longer, ours):
        raise SystemExit(f"{CONTROLS}: {ours} is not better than {longer}: that comes first, write the sentences anew")
    return {
        "equal time": f"**At equal GPU time, it is better than more epochs.** The difference to `{longer}` is "
        f"{_difference(to_longer, ours)}, at {_time(to_none, ours, longer)} of its GPU time.",
        "parts": f"Where its gain comes from: blur in one pass gains {_difference(to_none, alone)} over `none`, a "
        f"second pass without the KL term adds {_difference(to_alone, two)}, and the KL term adds "
        f"{_difference(to_two, ours)}.",
    }


def bullets() -> str:
    """All sentences, as a list."""
    return "\n".join(f"- {sentence}" for sentence in (sentences() | controls()).values())


def short() -> str:
    """What the README says of it."""
    found = sentences()
    return f"- {found['longer']} {found['alone']}\n- {found['best']} {controls()['equal time']}"


def attacks() -> str:
    """The table of attacks with a weakness, and the epsilon that leaves what the paper reports."""
    page = WEAK_ATTACKS.read_text(encoding="utf-8")
    return page[page.index("| attack |") :].strip()


def _picked(is_one: Callable[[claims.Runs], bool]) -> str:
    """The method that the validation part of the screen prefers."""
    found = claims.SCARCE.pick(is_one)
    if found is None:
        raise SystemExit(f"{FOLDER}: expected one of ours, R-Drop, longer, hard and blur")
    return found.label


def _study(baseline: str | None, folder: Path = FOLDER) -> tables.Study:
    return tables.read(folder, baseline)


def _method(study: tables.Study, label: str) -> tables.Method:
    return next(one for one in study.methods if one.label == label)


def _difference(study: tables.Study, label: str) -> str:
    """`+2.7 points [+2.1, +3.4]`."""
    found = _method(study, label).difference
    if found is None or found.holm_interval is None:
        raise SystemExit(f"{FOLDER}: expected a difference with an interval for {label}")
    shown = found.times(study.primary.factor)
    return f"{signed(shown.mean, 1)} points {shown.holm_interval.text(1)}"


def _is_better(study: tables.Study, label: str) -> bool:
    """Whether it is better than the baseline of the study, after correction."""
    found = _method(study, label).difference
    return found is not None and found.marked and found.mean > 0


def _time(study: tables.Study, label: str, other: str) -> str:
    """GPU seconds of a run to those of another method."""
    ours, theirs = (statistics.fmean(_method(study, one).columns["gpu_seconds"]) for one in (label, other))
    return f"{ours / theirs:.2f}"


def _mean(study: tables.Study, label: str, column: str) -> str:
    return f"{100 * statistics.fmean(_method(study, label).columns[column]):.1f}"
