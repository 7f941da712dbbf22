"""What must be read beside H5 and H6, the headline claims about translation: R-Drop is a part of their method."""

from __future__ import annotations

import statistics

import second_pass
import studies
import tables
import translation
import wording
from studies import TRANSLATION, Runs, Study, is_called

from attentiondrop.experiments.analysis.intervals import paired_difference, signed
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.reference import gaussian_kernel
from attentiondrop.specs import BlurSmoothing

#: The first seed without a test score when the method was composed (protocol.md, "Changed during study 3").
UNSEEN = 5
#: Steps of this model were timed before the study.
STEPS = "../../benchmarks/results/study-steps-h200-torch2.11.md"


def owes_r_drop(study: Study, ours: Runs) -> bool:
    """Whether R-Drop is a part of the method, and was not shown to be worse without the other parts."""
    alone = study.pick(is_called("r-drop")) if "r-drop" in ours.parts else None
    added = None if alone is None else paired_difference(ours.test, alone.test)
    return added is not None and not (added.interval is not None and added.interval.low > 0)


def beside(h6: str) -> str:
    """What H5 and H6 do not say themselves. `h6`: the difference of H6, corrected over all headline claims."""
    ours, r_drop, none = TRANSLATION.ours(), TRANSLATION.pick(is_called("r-drop")), TRANSLATION.pick(is_called("none"))
    if ours is None or r_drop is None or none is None:
        return "H5 was not measured."
    if not owes_r_drop(TRANSLATION, ours):
        raise SystemExit(f"{TRANSLATION.folder}: {ours.label} is better than R-Drop alone: write this anew")
    longer = wording.picked(TRANSLATION, is_called("longer"))
    folder = studies.RESULTS / TRANSLATION.folder
    to_none, to_longer = (tables.read(folder, one) for one in (none.label, longer))
    if not wording.is_better(to_longer, ours.label):
        raise SystemExit(f"{folder}: {ours.label} is not better than {longer}: write this anew")
    unseen = [_late_gain(one, none) for one in (ours, r_drop)]
    lines = (
        "**H5 is no success of ours.** Its method is R-Drop with a blur beside it. All six combinations that "
        "[the search](translation.md#a-search-at-full-length) tried had R-Drop in them, or dropout with our "
        f"consistency loss, which is nearly the same. To `{none.label}`, which has the dropout of the published model "
        f"(0.3), R-Drop alone is {wording.difference(to_none, r_drop.label, 2)}, and the method "
        f"{wording.difference(to_none, ours.label, 2)}; to `none` with twice the epochs, the method is "
        f"{wording.difference(to_longer, ours.label, 2)}. (These intervals are corrected over the "
        f"[table](translation.md). {_times()})",
        "The method was composed when the first test scores of `none` and R-Drop [had been seen]"
        f"(protocol.md#changed-during-study-3). With the seeds from {UNSEEN} on, which nobody had seen then, the "
        f"method is {unseen[0]} BLEU and R-Drop {unseen[1]} BLEU better than `none` (means, without correction).",
        f"**H6 failed**: what the blur adds to R-Drop is {h6} BLEU. This blur is weak: its sigma is at most "
        f"{_blur(ours).sigma_max:g}, which gives a neighbour at most {100 * _neighbour(_blur(ours)):.1f} % of the "
        "weight. Stronger parts beside R-Drop were tried with two seeds, on the validation part only.",
    )
    return "\n".join(f"- {line}" for line in lines)


def _times() -> str:
    """What is known of the GPU time of the method and of twice the epochs."""
    share = translation.share_of_longer()
    if share is not None:
        return f"The method takes {share} of the GPU time of twice the epochs."
    return (
        f"Two passes took [{second_pass.in_translation():.1f} times as long]({STEPS}) as one with this model where "
        "only the loss was compiled. This study compiles the model, too, and its steps were not timed yet. So it is "
        "open whether twice the epochs take less GPU time."
    )


def _late_gain(one: Runs, none: Runs) -> str:
    """The mean difference with the seeds that had not been seen."""
    seeds = [seed for seed in one.test if seed >= UNSEEN and seed in none.test]
    return signed(statistics.fmean(one.test[seed] - none.test[seed] for seed in seeds), 2)


def _blur(runs: Runs) -> BlurSmoothing:
    """The blur of a method."""
    spec = read_method(runs.label).spec
    (blur,) = (one for one in getattr(spec, "specs", [spec]) if isinstance(one, BlurSmoothing))
    return blur


def _neighbour(blur: BlurSmoothing) -> float:
    """The largest weight that a neighbouring key can have."""
    return float(gaussian_kernel(blur.sigma_max, blur.width)[blur.width // 2 + 1])
