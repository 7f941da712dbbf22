"""What study 3 found so far (Multi30k), as sentences whose numbers come from its published results."""

from __future__ import annotations

from pathlib import Path

import ablations
import studies
import tables
import yaml
from ranking import Ranking
from wording import method

from attentiondrop.experiments.analysis.intervals import signed
from attentiondrop.experiments.methods.parse import read_method

FOLDER = Path(__file__).parent / "results" / studies.TRANSLATION.folder
#: One training under three names: the recipe has dropout at 0.3 and no weight decay, which `decay` would multiply.
SAME = ("none", "none(lr=1.0,decay=0.2)", "dropout(p=0.3)")
SEARCH = Path(__file__).parent / "results" / "multi30k-search"


def bullets() -> str:
    """How far it is, what speaks against our method, and what tuning did to dropout."""
    study, runs = tables.read(FOLDER), tables.final_runs(FOLDER)
    done = sum(row["status"] == "finished" for row in runs)
    labels = [one.label for one in study.methods]
    (dropout,) = (label for label in labels if label.startswith("dropout("))
    (r_drop,) = (label for label in labels if studies.is_called("r-drop")(studies.Runs(label)))
    for label, is_worse in ((dropout, True), (r_drop, False)):
        found = method(study, label).difference
        if found is None or not found.marked or (found.mean < 0) != is_worse:
            raise SystemExit(f"{FOLDER}: {label} differs in another way from none: write the sentences anew")
    without_runs = [one.label for one in study.methods if not one.scores]
    in_trials = _in_trials(labels)
    lines = (
        f"**The study is not complete**: {done} of {len(runs)} runs of the {len(labels)} methods in the table are "
        f"done. {_listed(in_trials)} have not done all their trials, so they are not in the table. It judges no "
        "claim yet.",
        f"**What the search found on images was worse here with every seed**: {_searched_on_images(study)} The model "
        "keeps its dropout of 0.3 in both passes, and the weight of the loss is heavy.",
        f"R-Drop gains {_apart(study, r_drop)}. It has dropout at a rate of its own: tuning chose "
        f"{read_method(r_drop).comparators[0].p:g}.",
        f"Tuning failed for dropout: after 40 epochs, p = 0.1 had {_trial(dropout):.1f} BLEU on the validation part, "
        f"and p = 0.3 {_trial('dropout(p=0.3)'):.1f}. So it chose 0.1. After 100 epochs, the difference to `none`, "
        f"which has 0.3, is {_apart(study, dropout)}. {_same_trials()}",
    )
    lines += (_other_trials(without_runs),) if without_runs else ()
    return "\n".join(f"- {line}" for line in lines)


def _in_trials(labels: list[str]) -> list[str]:
    """The methods of the recipe whose settings have not been chosen yet."""
    recipe = yaml.safe_load((FOLDER / "recipe.yaml").read_text(encoding="utf-8"))["recipe"]
    chosen = [studies.Runs(label).parts for label in labels]
    return [one for one in recipe["methods"] if studies.Runs(one).parts not in chosen]


def _listed(names: list[str]) -> str:
    if len(names) < 2:
        raise SystemExit(f"{FOLDER}: {names} are in their trials: write the sentence anew")
    shown = [f"`{name}`" for name in names]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _searched_on_images(study: tables.Study) -> str:
    """Worse with every seed, but with too few of them for the correction over so many methods."""
    ours, none = method(study, studies.SEARCHED), study.methods[0]
    found = ours.difference
    if found is None or found.marked or any(none.scores[seed] <= ours.scores[seed] for seed in found.seeds):
        raise SystemExit(f"{FOLDER}: {ours.label} differs in another way from none: write its sentence anew")
    interval = found.times(study.primary.factor).interval
    return (
        f"the difference of `{ours.label}` to `none` is {_apart(study, ours.label)}. Without correction, the interval "
        f"is {interval.text(1)}. Corrected for all methods of this table, it includes zero: {len(found.seeds)} seeds "
        "are too few. It was stopped after them, since it can earn no claim any more."
    )


def ranking() -> Ranking:
    """The search at the full number of epochs."""
    return Ranking(ablations.read(SEARCH, "bleu", 1.0), "BLEU", "BLEU")


def searched() -> str:
    """What the search chose of R-Drop and of ours, and whether they differ."""
    found = ranking()
    ours, r_drop = (
        found.winner(lambda label, is_one=is_one: is_one(studies.Runs(label)))
        for is_one in (studies.is_ours, studies.is_called("r-drop"))
    )
    (dropout,) = (label for label in found.found.scores if studies.is_called("dropout")(studies.Runs(label)))
    if ours != studies.SEARCHED_IN_TEXT:
        raise SystemExit(f"{SEARCH}: the best of ours is {ours}: write studies.SEARCHED_IN_TEXT anew")
    if not found.change(ours, r_drop).includes_zero or found.mean(dropout) > found.mean(ablations.NONE):
        raise SystemExit(f"{SEARCH}: our method differs from R-Drop, or dropout helps: write the sentences anew")
    if r_drop not in {one.label for one in tables.read(FOLDER).methods}:
        raise SystemExit(f"{SEARCH}: the best R-Drop is {r_drop}, which the trials did not choose: write this anew")
    lines = (
        "**The search saw no perturbation of the attention that adds to R-Drop.** The best R-Drop is "
        f"`{r_drop}`, as the trials had chosen it: {found.mean(r_drop):.1f} BLEU, {found.change(r_drop)} to `none`. "
        f"The best of ours, `{ours}`, is the same with a weak blur beside it: {found.change(ours, r_drop)} to it.",
        f"Beside the same R-Drop, to it: {_beside(found, r_drop)}.",
        f"Dropout at {read_method(dropout).comparators[0].p:g} is not better than the published rate, which `none` "
        f"has: {found.change(dropout)}.",
        "R-Drop, the best of ours, and `none` are tested next, with ten seeds.",
    )
    return "\n".join(f"- {line}" for line in lines)


def _beside(found: Ranking, r_drop: str) -> str:
    """What each part that was put beside this R-Drop changes."""
    labels = [label for label in found.ranked() if label.startswith(f"{r_drop}+")]
    return ", ".join(f"`{label.removeprefix(f'{r_drop}+')}` {found.change(label, r_drop)}" for label in labels)


def _other_trials(labels: list[str]) -> str:
    """What the trials say of methods that have no runs yet."""
    if max(map(_trial, labels)) > _trial("none(lr=1.0,decay=0.2)"):
        raise SystemExit(f"{FOLDER}: one of {labels} is above none in its trials: write the sentence anew")
    shown = ", ".join(f"`{label}` {_trial(label):.1f}" for label in labels)
    return (
        "Of methods without runs, only the trials are known so far (40 epochs, one seed, BLEU on the validation part), "
        f"the best of each: {shown}. None of them is above the best of `none`."
    )


def _same_trials() -> str:
    """Trials of one and the same training: what rounding alone does to a short trial."""
    found = [_trial(label) for label in SAME]
    return (
        f"The trials could not tell them apart: {len(SAME)} trials that are one and the same training "
        f"({', '.join(f'`{label}`' for label in SAME)}) had {min(found):.1f} to {max(found):.1f} BLEU."
    )


def _apart(study: tables.Study, label: str) -> str:
    """The difference to `none`, and its seeds."""
    found = method(study, label).difference
    shown = found.times(study.primary.factor)
    return f"{signed(shown.mean, 1)} BLEU {shown.holm_interval.text(1)} ({len(found.seeds)} seeds)"


def _trial(label: str) -> float:
    """The validation BLEU of a trial."""
    rows = [row for row in tables.csv_rows(FOLDER / "results.csv") if row["part"] == "tuning"]
    (score,) = (row["validation_bleu"] for row in rows if row["method"] == label)
    return float(score)
