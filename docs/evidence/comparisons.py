"""The comparisons of two methods that the paper makes (P1 to P7), judged by the published results of the studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cifar_100
import studies
import tables
import verdicts
import wording
from other_claims import Judged, complete
from studies import FULL, SCARCE, TRANSLATION, Runs, Study, is_called, is_of_the_paper

from attentiondrop.experiments.analysis.intervals import Difference, corrected, paired_difference, signed


@dataclass(frozen=True)
class Said:
    """A comparison that the paper makes."""

    name: str
    ours: str
    theirs: str
    #: Whether it is about the calibration error, which should be lower.
    is_ece: bool = False


PAPER = (
    Said("P1", "hard", "dropout"),
    Said("P3", "blur", "dropout"),
    Said("P4", "blur+consistency", "r-drop"),
    Said("P5", "hard", "r-drop"),
    Said("P5", "blur", "r-drop"),
    Said("P7", "hard", "dropout", True),
    Said("P7", "blur", "dropout", True),
    Said("P7", "blur+consistency", "r-drop", True),
)
STUDIES = {"CIFAR-10, 20 %": SCARCE, "CIFAR-100": FULL}
#: In the protocol, this claim has another number for CIFAR-100; the others are about both data sets.
ON_CIFAR_100 = {"P1": "P2"}


def rows() -> list[list[str]]:
    """A row for each comparison of the paper in each study. Accuracy and calibration are two families.

    A study that is not complete judges none of them: the correction counts all of a family.
    """
    found_rows = []
    for title, study in STUDIES.items():
        done = complete(studies.RESULTS / study.folder)
        for is_ece in (False, True):
            claims = [said for said in PAPER if said.is_ece == is_ece]
            found = corrected([compared(study, said) if done else None for said in claims])
            for said, each in zip(claims, found, strict=True):
                lost = done and each is None and has_failed(study, said)
                found_rows.append(paper_row(title, said, each, lost))
    return found_rows


def table() -> str:
    """What the studies say about the comparisons of the paper."""
    return tables.listed(
        "claim | study | comparison | measure | seeds | difference, points [after Holm] | verdict", rows()
    )


def compared(study: Study, said: Said) -> Difference | None:
    """The difference of the two methods, in points."""
    ours, theirs = study.pick(is_as_tuned(said.ours)), study.pick(is_called(said.theirs))
    if ours is None or theirs is None:
        return None
    pair = (ours.ece, theirs.ece) if said.is_ece else (ours.test, theirs.test)
    found = paired_difference(*pair)
    return None if found is None else found.times(100.0)


def is_as_tuned(name: str) -> Callable[[Runs], bool]:
    """Whether a method is one of the paper, with settings that tuning chose and not our search."""
    return lambda runs: is_of_the_paper(name)(runs) and runs.label != studies.SEARCHED


def has_failed(study: Study, said: Said) -> bool:
    """Whether one of the two methods has runs, and none of them finished."""
    is_one, is_other = is_as_tuned(said.ours), is_called(said.theirs)
    return any(runs.failed and not runs.test for runs in study.methods() if is_one(runs) or is_other(runs))


def paper_row(title: str, said: Said, found: Difference | None, lost: bool) -> list[str]:
    """One row of the table. `lost`: all runs of one of the methods failed, so there is no difference."""
    name = ON_CIFAR_100.get(said.name, said.name) if title == "CIFAR-100" else said.name
    head = [name, title, f"`{said.ours}` - `{said.theirs}`", "ECE" if said.is_ece else "accuracy"]
    if found is None:
        words = ["all runs of a method failed", verdicts.NOT_RESOLVED] if lost else ["", verdicts.NOT_MEASURED]
        return [*head, "", *words]
    interval = "-" if found.holm_interval is None else found.holm_interval.text(2)
    return [*head, str(len(found.seeds)), f"{signed(found.mean, 2)} {interval}", reproduced(found, said.is_ece)]


def reproduced(found: Difference, is_ece: bool) -> str:
    """What the protocol calls success and failure: beyond zero, or within 0.3 points, or on the wrong side.

    For a calibration error (P7), every interval that is not below zero is a failure.
    """
    interval = found.holm_interval
    if interval is None:
        return verdicts.NOT_RESOLVED
    low, high = (-interval.high, -interval.low) if is_ece else (interval.low, interval.high)
    if low > 0:
        return verdicts.REPRODUCED
    if is_ece:
        return verdicts.NOT_REPRODUCED
    # Only an interval that holds for the whole family shows that two are equal.
    is_equal = found.joint_interval is not None and found.joint_interval.within(0.3)
    return verdicts.NOT_REPRODUCED if high < 0 or is_equal else verdicts.NOT_RESOLVED


def remark() -> str:
    """What P3 does not ask: how dropout and blur do against no method."""
    none, dropout, blur = (
        SCARCE.pick(one) for one in (is_called("none"), is_called("dropout"), is_of_the_paper("blur"))
    )
    if none is None or dropout is None or blur is None:
        return "P3 was not measured."
    study = tables.read(studies.RESULTS / SCARCE.folder, none.label)
    if wording.method(study, dropout.label).difference.mean > 0 or wording.is_better(study, blur.label):
        raise SystemExit(f"{SCARCE.folder}: dropout has a higher mean than none, or blur is better: write this anew")
    return (
        "Read P3 on 20 % of CIFAR-10 with care: tuned dropout has a lower mean than no method "
        f"({wording.difference(study, dropout.label)}), and blur alone shows no gain over no method "
        f"({wording.difference(study, blur.label)}). {cifar_100.weak_rivals()}"
    ).rstrip()


# --- P6: translation -------------------------------------------------------------------------------------------------

#: The paper's methods with a score for WMT14 in its table, and what it compares them with.
TRANSLATED = tuple((ours, theirs) for ours in ("hard", "blur", "blur+consistency") for theirs in ("dropout", "r-drop"))
#: The number of seeds that the protocol asks for.
SEEDS = 10
ELSEWHERE = "WMT14 itself cannot be had here"
NOT_BLUR_ALONE = (
    "Whether the blur has a share in the one that is reproduced, this study cannot say: the consistency loss also "
    "compares the dropout of the model, and no tested run has that alone"
)


def translated() -> Judged:
    """P6, on Multi30k. There, `none` has dropout at its published rate: the better of it and `dropout` is compared."""
    others = {"dropout": is_called("none", "dropout"), "r-drop": is_called("r-drop")}
    found: list[Difference | None] = []
    for ours, theirs in TRANSLATED:
        pair = TRANSLATION.pick(is_of_the_paper(ours)), TRANSLATION.pick(others[theirs])
        one = None if None in pair else paired_difference(*(runs.test for runs in pair))
        found.append(one if one is not None and len(one.seeds) >= SEEDS else None)
    link = "[translation](translation.md)"
    measured = {pair: one for pair, one in zip(TRANSLATED, corrected(found), strict=True) if one is not None}
    missing = [f"`{ours}` - `{theirs}`" for ours, theirs in TRANSLATED if (ours, theirs) not in measured]
    if missing:
        # The correction counts all six: their verdict would change with those that are missing.
        words = f"On Multi30k, these comparisons do not have {SEEDS} seeds yet: {', '.join(missing)}"
        return Judged(verdicts.NOT_MEASURED, f"{words}. {ELSEWHERE}", link)
    parts = [f"`{ours}` - `{theirs}` {_bleu(one)}" for (ours, theirs), one in measured.items()]
    judged = {pair: reproduced(one, is_ece=False) for pair, one in measured.items()}
    again = [pair for pair, words in judged.items() if words == verdicts.REPRODUCED]
    below = sum(one.holm_interval is not None and one.holm_interval.high < 0 for one in measured.values())
    dropout = wording.picked(TRANSLATION, others["dropout"])
    words = (
        f"Multi30k reproduces {len(again)} of {len(judged)} comparisons. The intervals of {below} are below zero. "
        f"BLEU (`dropout` is `{dropout}` there): {', '.join(parts)}. {ELSEWHERE}"
    )
    if again == [("blur+consistency", "dropout")]:
        words += f". {NOT_BLUR_ALONE}"
    return Judged(verdicts.together(list(judged.values())), words, link)


def _bleu(found: Difference) -> str:
    interval = "-" if found.holm_interval is None else found.holm_interval.text(2)
    return f"{signed(found.mean, 2)} {interval}"
