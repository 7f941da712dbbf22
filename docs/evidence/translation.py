"""What study 3 found (Multi30k), as sentences whose numbers come from its published results."""

from __future__ import annotations

import statistics
from pathlib import Path

import ablations
import plan
import studies
import tables
from ranking import Ranking
from result_files import csv_rows, recipe_of
from wording import difference, method, picked, time_ratio

from attentiondrop.experiments.methods.parse import read_method

FOLDER = Path(__file__).parent / "results" / studies.TRANSLATION.folder
#: One training under three names: the recipe has dropout at 0.3 and no weight decay, which `decay` would multiply.
SAME = ("none", "none(lr=1.0,decay=0.2)", "dropout(p=0.3)")
SEARCH = Path(__file__).parent / "results" / "multi30k-search"


def bullets() -> str:
    """How far it is, what speaks against our methods, and what tuning did to dropout."""
    study = tables.read(FOLDER)
    dropout, r_drop = (picked(studies.TRANSLATION, studies.is_called(name)) for name in ("dropout", "r-drop"))
    _expect(study, dropout, -1)
    _expect(study, r_drop, 1)
    without_runs = [one.label for one in study.methods if not one.scores]
    beside, of_the_paper = _ours_to_r_drop(r_drop)
    lines = (
        _progress(study),
        f"**R-Drop gains {_apart(study, r_drop)}. No other method was shown to be better than it.** "
        f"R-Drop has dropout at a rate of its own: tuning chose {read_method(r_drop).comparators[0].p:g}. {beside}",
        of_the_paper,
        f"**What the search found on images was worse here with every seed**: {_searched_on_images(study)} The model "
        "keeps its dropout of 0.3 in both passes, and the weight of the loss is heavy.",
        _one_pass(study),
        f"Tuning failed for dropout: after 40 epochs, p = 0.1 had {_trial(dropout):.1f} BLEU on the validation part, "
        f"and p = 0.3 {_trial('dropout(p=0.3)'):.1f}. So it chose 0.1. After 100 epochs, the difference to `none`, "
        f"which has 0.3, is {_apart(study, dropout)}. {_same_trials()}",
        _deviations(),
    )
    lines += (_other_trials(without_runs),) if without_runs else ()
    return "\n".join(f"- {line}" for line in lines)


def _progress(study: tables.Study) -> str:
    """How many runs are done. Methods that were stopped get no more."""
    recipe = recipe_of(FOLDER)["recipe"]
    kinds = [studies.Runs(one).parts for one in recipe["methods"]]
    going = [
        one
        for one in study.methods
        if studies.Runs(one.label).parts in kinds and one.label not in studies.TRANSLATION.silent
    ]
    if len(going) != len(kinds):
        raise SystemExit(f"{FOLDER}: not all of {recipe['methods']} have done their trials: they need a sentence")
    done, runs = sum(len(one.scores) for one in going), sum(one.ended for one in going)
    stopped = len(study.methods) - len(going)
    if done == runs:
        return (
            f"The study is complete: all {runs} runs of {len(going)} methods are done. {stopped} others were "
            "[stopped](protocol.md#changed-during-study-3) when their scores were known, which their intervals do not "
            "take into account."
        )
    state = f"{done} of {runs} runs of {len(going)} methods are done"
    return f"**The study is not complete**: {state}. It judges no claim yet."


def _deviations() -> str:
    """How far the differences of single seeds deviate, as the protocol promises."""
    ours = studies.TRANSLATION.named(studies.SEARCHED_IN_TEXT)
    found = []
    for claim, name in (("H5", "none"), ("H6", "r-drop")):
        other = studies.TRANSLATION.pick(studies.is_called(name))
        apart = [one - other.test[seed] for seed, one in ours.test.items() if seed in other.test]
        found.append(f"{statistics.stdev(apart):.2f} BLEU ({claim})")
    (assumed,) = {claim.deviation for claim in plan.CLAIMS if claim.name in ("H5", "H6")}
    return (
        f"Differences of single seeds deviate by {' and '.join(found)}. The "
        f"[power](protocol.md#headline-claims) was computed with {assumed:.2f}."
    )


def _ours_to_r_drop(r_drop: str) -> tuple[str, str]:
    """What the paper's method with a consistency loss, and what a search chose beside R-Drop, do against R-Drop."""
    to_none, to_r_drop, both = tables.read(FOLDER), tables.read(FOLDER, r_drop), studies.SEARCHED_IN_TEXT
    paper = picked(studies.TRANSLATION, studies.is_of_the_paper("blur+consistency"))
    for one in to_r_drop.methods[1:]:
        if one.difference is not None and one.difference.marked and one.difference.mean > 0:
            raise SystemExit(f"{FOLDER}: {one.label} differs in another way from R-Drop: it is better. Write this anew")
    _expect(to_r_drop, paper, -1)
    two_passes = next(one.label for one in to_none.methods if one.label.startswith("r-drop(weight=0.0"))
    to_two_passes = tables.read(FOLDER, two_passes)
    _expect(to_none, paper, 1)
    _expect(to_two_passes, paper, 1)
    _expect(to_none, two_passes, 0)
    return (
        f"R-Drop with a weak blur beside it, `{both}`, to R-Drop: {_apart(to_r_drop, both)}. Two passes without a "
        f"loss, `{two_passes}`, are not told apart from `none`: {_apart(to_none, two_passes)}.",
        f"The paper's blur with a consistency loss, `{paper}`, gains {_apart(to_none, paper)}; to R-Drop, that is "
        f"{_apart(to_r_drop, paper)}; to two passes without a loss, {_apart(to_two_passes, paper)}. Its loss also "
        "compares the dropout of the model, as R-Drop does, and no tested run has that alone. So this study cannot say "
        "whether the blur has a share.",
    )


def _one_pass(study: tables.Study) -> str:
    """Masking, blur and DropKey alone."""
    hard, blur = (picked(studies.TRANSLATION, studies.is_of_the_paper(name)) for name in ("hard", "blur"))
    drop_key = picked(studies.TRANSLATION, studies.is_called("dropkey"))
    for label in (hard, blur):
        _expect(study, label, 0)
    _expect(study, drop_key, -1)
    return (
        "**Neither hard masking nor blur shows a gain when it is alone.** To `none`, hard masking: "
        f"{_apart(study, hard)}; blur: {_apart(study, blur)}. DropKey does harm: {_apart(study, drop_key)}."
    )


def _expect(study: tables.Study, label: str, sign: int) -> None:
    """The sentences say that a method is better (1) or worse (-1) after correction, or that neither was shown (0)."""
    found = method(study, label).difference
    if found is None or found.marked != bool(sign) or found.mean * sign < 0:
        raise SystemExit(f"{FOLDER}: {label} differs in another way from {study.methods[0].label}: write this anew")


def _searched_on_images(study: tables.Study) -> str:
    """Worse with every seed, but with too few of them for the correction over so many methods."""
    ours, none = method(study, studies.SEARCHED), study.methods[0]
    found = ours.difference
    if found is None or found.marked or any(none.scores[seed] <= ours.scores[seed] for seed in found.seeds):
        raise SystemExit(f"{FOLDER}: {ours.label} differs in another way from none: write its sentence anew")
    interval = found.times(study.primary.factor).interval
    return (
        f"the difference of `{ours.label}` to `none` is {_apart(study, ours.label)}. Without correction, the interval "
        f"is {interval.text(2)}. Corrected for all methods of this table, it includes zero: {len(found.seeds)} seeds "
        "are too few. It was stopped after them, since it can earn no claim any more."
    )


def in_short() -> str:
    """What other pages say of it."""
    bullets()  # stops if one of these is not so
    return (
        "In translation (Multi30k), hard masking alone and blur alone show no gain, and no method of ours was shown to "
        "be better than R-Drop. What wins on images was worse there with each of three seeds."
    )


def times() -> str:
    """Whether the steps were timed alone."""
    if not any(row.get("gpu_seconds") for row in tables.final_runs(FOLDER)):
        return "Steps were not timed alone yet, so the table has no GPU time."
    return (
        "GPU seconds of a run are its steps times the time of one step, which was measured alone: [the time of a step]"
        "(results/multi30k-en-de/costs.json).\n\n"
        "![Test BLEU against GPU seconds](results/multi30k-en-de/multi30k-en-de-gpu-seconds.svg)"
    )


def share_of_longer() -> str | None:
    """GPU time of the method of the claims to that of twice the epochs; None if one of them was not measured."""
    study, ours = tables.read(FOLDER), studies.SEARCHED_IN_TEXT
    longer = picked(studies.TRANSLATION, studies.is_called("longer"))
    timed = all(method(study, label).columns.get("gpu_seconds") for label in (ours, longer))
    return time_ratio(study, ours, longer) if timed else None


def ranking() -> Ranking:
    """The search at the full number of epochs."""
    return Ranking(ablations.read(SEARCH, "bleu", 1.0), "BLEU", "BLEU")


def ranking_of_search() -> str:
    """All combinations of the search, and how many of their runs are done."""
    found = ranking()
    return f"{found.state()}\n\n{found.table()}"


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
        "R-Drop, the best of ours, and `none` were tested then, with ten seeds: the first table has them.",
    )
    return "\n".join(f"- {line}" for line in lines)


def _beside(found: Ranking, r_drop: str) -> str:
    """What each part that was put beside this R-Drop changes."""
    labels = [label for label in found.ranked() if label.startswith(f"{r_drop}+")]
    return ", ".join(f"`{label.removeprefix(f'{r_drop}+')}` {found.change(label, r_drop)}" for label in labels)


def _other_trials(labels: list[str]) -> str:
    """What the trials say of methods that left before their first run."""
    if max(map(_trial, labels)) > _trial("none(lr=1.0,decay=0.2)"):
        raise SystemExit(f"{FOLDER}: one of {labels} is above none in its trials: write the sentence anew")
    shown = ", ".join(f"`{label}` {_trial(label):.1f}" for label in labels)
    return (
        f"Methods that left before their first run of 100 epochs, with the best of their trials (40 epochs, one seed, "
        f"BLEU on the validation part): {shown}. This is below the best trial of `none`."
    )


def _same_trials() -> str:
    """Trials of one and the same training: what rounding alone does to a short trial."""
    found = [_trial(label) for label in SAME]
    return (
        f"The trials could not tell them apart: {len(SAME)} trials that are one and the same training "
        f"({', '.join(f'`{label}`' for label in SAME)}) had {min(found):.1f} to {max(found):.1f} BLEU."
    )


def _apart(study: tables.Study, label: str) -> str:
    """The difference to the baseline of the study, and its seeds."""
    return f"{difference(study, label, 2)} ({len(method(study, label).difference.seeds)} seeds)"


def _trial(label: str) -> float:
    """The validation BLEU of a trial."""
    rows = [row for row in csv_rows(FOLDER / "results.csv") if row["part"] == "tuning"]
    (score,) = (row["validation_bleu"] for row in rows if row["method"] == label)
    return float(score)
