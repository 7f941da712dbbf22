"""P10: are the gains largest where data is limited or noisy? Written before the runs at 10 and 50 %.

The settings of each method are the same in all studies, and so are the seeds. A gain is the test accuracy of a method
minus that of `none` with the same seed.

- Limited: the gain at 10 % minus the gain at 50 %, a paired t test over the seeds. (This is the linear trend over three
  steps of equal weight: the gain at 20 % is in the middle, and has no influence. It is only shown.)
- Noisy: the gain with 40 % wrong labels minus the gain without, both with 20 % of the images. Only for methods that ran
  with wrong labels, too.

Holm's correction is applied to all of these tests together.
"""

from __future__ import annotations

import statistics

import studies
import verdicts
from other_claims import PROTOCOL, Judged, complete, not_measured
from studies import NOISY, SCARCE, Study

from attentiondrop.experiments.analysis.intervals import Difference, corrected, paired_difference, signed

TENTH, HALF = Study("cifar10-20pct-tenth"), Study("cifar10-half")
BASELINE = "none"
#: The methods of the paper, with their settings of study 1.
METHODS = ("hard(p=0.2,k=5)", "blur(sigma_max=0.5)", "blur(sigma_max=2.0)+consistency(weight=1.0)")


def gains(study: Study, label: str) -> dict[int, float]:
    """Seed -> how much better a method is than `none`, in points; empty if one of them did not run."""
    ours, none = study.named(label), study.named(BASELINE)
    if ours is None or none is None:
        return {}
    return {seed: study.factor * (ours.test[seed] - none.test[seed]) for seed in ours.test.keys() & none.test.keys()}


def judged() -> Judged:
    """The claim."""
    needed = (one.folder for one in (TENTH, HALF, SCARCE, NOISY))
    if missing := [name for name in needed if not complete(studies.RESULTS / name)]:
        return not_measured(missing)
    limited = {label: _difference(label, HALF, TENTH) for label in METHODS}
    noisy = {label: _difference(label, SCARCE, NOISY) for label in METHODS if NOISY.named(label) is not None}
    after = iter(corrected([*limited.values(), *noisy.values()]))
    words, parts = [], []
    for label in limited:
        parts.append(_verdict(found := next(after)))
        each = " / ".join(_mean(gains(one, label)) for one in (HALF, SCARCE, TENTH))
        words.append(f"`{label}` {each} points at 50 / 20 / 10 % of the images: the growth is {_told(found)}")
    for label in noisy:
        parts.append(_verdict(found := next(after)))
        words.append(f"with 40 % wrong labels, the gain of `{label}` grows by {_told(found)}")
    return Judged(verdicts.together(parts), "; ".join(words), PROTOCOL)


def _difference(label: str, before: Study, after: Study) -> Difference | None:
    return paired_difference(gains(after, label), gains(before, label))


def _verdict(found: Difference | None) -> str:
    """The protocol: it grows, or it does not."""
    if found is None or found.holm_interval is None:
        return verdicts.NOT_RESOLVED
    return verdicts.REPRODUCED if found.holm_interval.low > 0 else verdicts.NOT_REPRODUCED


def _mean(found: dict[int, float]) -> str:
    return signed(statistics.fmean(found.values()), 1) if found else "-"


def _told(found: Difference | None) -> str:
    if found is None:
        return "not measured"
    return signed(found.mean, 1) + ("" if found.holm_interval is None else f" {found.holm_interval.text(1)}")
