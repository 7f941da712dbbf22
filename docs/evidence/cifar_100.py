"""What study 2 shows on CIFAR-100, as sentences whose numbers come from its published results, however far it is."""

from __future__ import annotations

import statistics

import checks
import studies
import tables
from result_files import csv_rows, recipe_of
from studies import FULL, Runs, is_called
from wording import difference, method

from attentiondrop.experiments.methods.parse import terms

FOLDER = studies.RESULTS / FULL.folder
#: A difference with fewer common seeds than this gets no sentence.
FEWEST = 3
CHANGED = "protocol.md#changed-during-study-2"


def bullets() -> str:
    """How far it is, what differs from `none`, how short the training is, and what tuning saw."""
    study = tables.read(FOLDER)
    lines = (_progress(study), *_to_none(study), _short(study), _trials())
    return "\n".join(f"- {line}" for line in lines)


def beside() -> str:
    """What must be read beside the claims about CIFAR-100: what the others do against `none`."""
    if FULL.pick(is_called("none")) is None:
        return "CIFAR-100 was not measured."
    study = tables.read(FOLDER)
    others = [one for name in ("dropout", "r-drop") if (one := FULL.pick(is_called(name))) is not None]
    worse = [one.label for one in others if _told(study, one.label) == "worse"]
    lines = [
        f"H2 compares with the better of `none` and R-Drop, by the validation part ([why]({CHANGED})). It has the "
        "limit of R-Drop's GPU time."
    ]
    if not is_complete(study):
        lines.append("CIFAR-100 [is not complete](cifar-100.md). So far, it has earned and lost no claim.")
    if worse:
        shown = ", ".join(f"`{label}` {difference(study, label)}" for label in worse)
        lines.append(f"On CIFAR-100, these are worse than no method: {shown}. So read comparisons with them with care.")
    return "\n".join(f"- {line}" for line in lines)


def is_complete(study: tables.Study) -> bool:
    """Whether every method of the recipe has all of its runs."""
    recipe = recipe_of(FOLDER)["recipe"]
    return _done(study) == len(recipe["methods"]) * recipe["seeds"]


def _done(study: tables.Study) -> int:
    return sum(len(one.scores) for one in study.methods)


def _progress(study: tables.Study) -> str:
    """How many runs are done."""
    recipe = recipe_of(FOLDER)["recipe"]
    methods, runs = len(recipe["methods"]), len(recipe["methods"]) * recipe["seeds"]
    if is_complete(study):
        return f"The study is complete: all {runs} runs of {methods} methods are done."
    with_runs = sum(bool(one.scores) for one in study.methods)
    return (
        f"**The study is not complete**: {_done(study)} of {runs} runs are done, of {with_runs} of {methods} methods. "
        "It judges no claim yet, and the corrections count the methods that have runs only."
    )


def _to_none(study: tables.Study) -> list[str]:
    """All differences to `none`: first what is better, then what is not told apart, then what is worse."""
    said = {
        "better": "Better than `none`, after Holm's correction",
        "not told apart": "Not told apart from `none`",
        "worse": "**Worse than `none`**",
    }
    found: dict[str, list[str]] = {}
    few = []
    for one in study.methods[1:]:
        if _told(study, one.label) is None:
            few += [f"`{one.label}` ({len(one.scores)})"] if one.scores else []
            continue
        seeds = len(one.difference.seeds)
        found.setdefault(_told(study, one.label), []).append(f"`{one.label}` {difference(study, one.label)} ({seeds})")
    lines = [
        f"{words} (in brackets: seeds): {'; '.join(found[kind])}." for kind, words in said.items() if kind in found
    ]
    if "better" not in found:
        lines.insert(
            0, f"**{'No' if is_complete(study) else 'So far, no'} method was shown to be better than `none`.**"
        )
    return lines + ([f"With too few seeds for a sentence: {', '.join(few)}."] if few else [])


def _told(study: tables.Study, label: str) -> str | None:
    """Whether a method is better or worse than `none`; None with fewer seeds than three."""
    found = method(study, label).difference
    if found is None or found.holm_interval is None or len(found.seeds) < FEWEST:
        return None
    return ("better" if found.mean > 0 else "worse") if found.marked else "not told apart"


def _short(study: tables.Study) -> str:
    """How much `none` still gains from more epochs: no method can be judged without that."""
    epochs = recipe_of(FOLDER)["recipe"]["training"]["epochs"]
    mean = 100 * statistics.fmean(study.methods[0].scores.values())
    twice, longest = (checks.chosen_of_cifar_100(one) for one in (2 * epochs, 3 * epochs))
    return (
        f"**{epochs} epochs are few.** `none` has {mean:.1f} % after them. In the "
        f"[check of the baseline](protocol.md#changed-before-the-first-run-of-a-study), one run of {2 * epochs} epochs "
        f"had {twice} %, and one of {3 * epochs} (with half of the weight decay) {longest} %, on the test part. What "
        "slows training down loses in such a study."
    )


def _trials() -> str:
    """The best trial of each method, to the best one of `none`."""
    rows = [row for row in csv_rows(FOLDER / "results.csv") if row["part"] == "tuning" and row["status"] == "finished"]
    epochs = recipe_of(FOLDER)["recipe"]["tuning"]["epochs"]
    best: dict[str, float] = {}
    for row in rows:
        kind = _kind(row["method"])
        best[kind] = max(best.get(kind, 0.0), 100 * float(row["validation_accuracy"]))
    shown = ", ".join(f"`{kind}` {best[kind]:.1f}" for kind in sorted(best, key=best.__getitem__, reverse=True))
    return (
        f"Trials ({epochs} epochs, twice as many for `longer`; one seed; validation part), the best of three for each "
        f"method, %: {shown}. A trial varies by [about a point](study-1.md#confirm) by rounding alone."
    )


def _kind(label: str) -> str:
    """A method without its settings. R-Drop without its loss is a control, and another method."""
    if Runs(label).parts == ["r-drop"] and not is_called("r-drop")(Runs(label)):
        return "r-drop(weight=0.0)"
    return "+".join(term.name for term in terms(label))
