"""Whether models are too sure or not sure enough: accuracy minus mean confidence on the test part, from the records.

The calibration error (ECE) has no sign: it is the mean distance of both, bin by bin. If all bins err to the same side,
it is as large as the distance of the two means, which is what one temperature for all logits changes.
"""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path

from record_texts import record_texts

from attentiondrop.experiments.analysis.intervals import Difference, paired_difference, signed

RECORDS = Path(__file__).parent / "records"


@cache
def gaps(records: Path) -> dict[str, dict[int, float]]:
    """Method -> seed -> accuracy minus mean confidence, in points. Positive: right more often than sure."""
    found: dict[str, dict[int, float]] = {}
    texts = record_texts(records)
    for name, text in texts.items():
        # (Trials and ablations have no test part, and so no diagram.)
        if name.endswith("/result.json") and (diagram := json.loads(text)["reliability"]) is not None:
            request = json.loads(texts[name.replace("result.json", "run.json")])
            found.setdefault(request["method"], {})[request["seed"]] = 100 * gap(diagram)
    return found


def gap(diagram: dict[str, list[float | None]]) -> float:
    """Accuracy minus mean confidence, over all bins of a reliability diagram."""
    bins = zip(diagram["accuracy"], diagram["confidence"], diagram["count"], strict=True)
    filled = [(right - sure, count) for right, sure, count in bins if right is not None and sure is not None and count]
    return sum(apart * count for apart, count in filled) / sum(count for _, count in filled)


def difference(records: Path, ours: str, other: str) -> Difference:
    """The gap of one method minus that of another, paired by seed."""
    every = gaps(records)
    found = paired_difference(every[ours], every[other])
    if found is None:
        raise SystemExit(f"{records}: {ours} and {other} share no seed")
    return found


def sentence(study: str, ours: str, longer: str, errors: dict[str, float]) -> str:
    """What study 1 says of it. `errors`: method -> its mean ECE, in points."""
    records = RECORDS / f"{study}.tar.gz"
    every = {label: statistics.fmean(runs.values()) for label, runs in gaps(records).items()}
    mean = {label: every[label] for label in (ours, "none", longer)}
    if not (mean[ours] > 0.9 * errors[ours] and mean["none"] > 0.9 * errors["none"]):
        raise SystemExit(f"{records}: the errors of {ours} or none have other signs: write the sentence anew")
    apart = difference(records, ours, "none").interval
    if apart is None or apart.low <= 0:
        raise SystemExit(f"{records}: {ours} is not less sure than none: write the sentence anew")
    return (
        f"**It is not sure enough, rather than too sure**: its accuracy is {mean[ours]:.1f} points above its mean "
        f"confidence (that of `none` {mean['none']:.1f} points). That is nearly as much as its calibration error, so "
        "its predictions of nearly all confidences err to this side, and [temperature scaling]"
        "(../evaluation.md#calibration) is made for that. "
        f"{_of_longer(mean[longer], errors[longer])} Errors after temperature scaling were not measured in this study."
    )


def _of_longer(mean: float, error: float) -> str:
    """Whether the error of twice the epochs is one shift, too."""
    sides = "to one side" if abs(mean) > 0.9 * error else "to both sides"
    return f"With twice the epochs, this distance is {signed(mean, 1)} points, so its predictions err {sides}."


def all_not_sure_enough(study: str) -> tuple[int, float]:
    """How many models a study has, all of them right more often than sure, and the smallest gap."""
    every = [gap for runs in gaps(RECORDS / f"{study}.tar.gz").values() for gap in runs.values()]
    if min(every) <= 0:
        raise SystemExit(f"{study}: some models are too sure: write the sentence anew")
    return len(every), min(every)
