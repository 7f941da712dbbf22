"""What study 1 found, as sentences whose numbers come from its published results."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import cifar_100
import second_pass
import studies
import sureness
import tables
import translation
import wrong_labels
from result_files import csv_rows
from wording import calibration, difference, is_better, method, picked, time_ratio

from attentiondrop.experiments.analysis.intervals import corrected, paired_difference, signed
from attentiondrop.experiments.methods.parse import read_method, terms

FOLDER = Path(__file__).parent / "results" / studies.SCARCE.folder
#: The controls of our best method, with the seeds of the confirming table.
CONTROLS = Path(__file__).parent / "results" / "cifar10-20pct-controls"
#: Our best method and `none` with the epochs that take its GPU time, all in the same kernels.
EQUAL = second_pass.EQUAL
#: The trials that chose the settings.
SCREEN = Path(__file__).parent / "results" / "cifar10-20pct-screen"
#: All six settings of each method, with the seeds of the confirming table.
WIDE = Path(__file__).parent / "results" / "cifar10-20pct-wide"
WEAK_ATTACKS = Path(__file__).parents[2] / "benchmarks" / "results" / "weak-attacks-h200-torch2.11.md"


def sentences() -> dict[str, str]:
    """Name -> sentence. Intervals are those after Holm's correction over all comparisons with the same method."""
    ours, first = studies.SEARCHED, picked(studies.SCARCE, studies.is_ours)
    r_drop, longer = (picked(studies.SCARCE, studies.is_called(name)) for name in ("r-drop", "longer"))
    hard, blur = (picked(studies.SCARCE, studies.is_of_the_paper(name)) for name in ("hard", "blur"))
    to_none, to_r_drop, to_longer, to_first = (_study(one) for one in (None, r_drop, longer, first))
    over_none = {label: difference(to_none, label) for label in (ours, longer, hard, blur)}
    if any(method(to_none, label).difference.marked for label in (hard, blur)):
        raise SystemExit(f"{FOLDER}: hard masking or blur alone differs from none: write its sentence anew")
    if method(to_longer, ours).difference.marked or not is_better(to_first, ours):
        raise SystemExit(f"{FOLDER}: {ours} differs from twice the epochs, or not from {first}: write this anew")
    gain = (
        f"The best of our methods is `{ours}`. It gains {over_none[ours]} over `none` (no method), and "
        f"{difference(to_r_drop, ours)} over tuned R-Drop"
    )
    return {
        "longer": "**Our best method is not better than twice the epochs without a method.** These gain "
        f"{over_none[longer]} over `none`, and the difference of our method to them is {difference(to_longer, ours)}.",
        "gain": gain,
        "best": f"{gain} at about {wrong_labels.same_kernels().times()[0]} of its GPU time "
        f"({second_pass.to_r_drop_elsewhere()}).",
        "weight": f"[The search](search.md) chose its weight on validation data. The heavier weight adds "
        f"{difference(to_first, ours)} to `{first}`.",
        "trials": _repeated_trials(),
        "alone": f"Hard masking alone ({over_none[hard]}) and blur alone ({over_none[blur]}) show no gain.",
        "calibration": f"{calibration(FOLDER, ours, r_drop, longer)} {_sureness(ours, longer)}",
    }


def equal_time() -> dict[str, str]:
    """Whether our best method is better than more epochs at equal GPU time, in the same kernels: name -> sentence."""
    ours = studies.SEARCHED
    (longer,) = (one.label for one in _study(None, EQUAL).methods if one.label.startswith("longer("))
    to_none, to_longer = (_study(one, EQUAL) for one in (None, longer))
    if not is_better(to_longer, ours):
        raise SystemExit(f"{EQUAL}: {ours} is not better than {longer}: that comes first, write the sentences anew")
    times = read_method(longer).comparators[0].times
    two_passes = second_pass.in_study_1()
    return {
        "gain": f"**At equal GPU time, it is better than more epochs**: {difference(to_longer, ours)} over `none` with "
        f"{times:g} times the epochs, at {time_ratio(to_none, ours, longer)} of its GPU time, all in the kernels of "
        "this library.",
        "twice": f"Twice the epochs take {2 / two_passes:.2f} times as long as our method.",
        "condition": f"This depends on what a second pass costs. Here two passes take {two_passes:.2f} times as long "
        f"as one: batches of 128 small images do not fill an H200. They take {second_pass.elsewhere()}. There, equal "
        "time is enough for nearly twice the epochs, and our method is not better than these here.",
    }


def parts() -> str:
    """Where the gain of our method with a lighter weight comes from, by the controls."""
    first = picked(studies.SCARCE, studies.is_ours)
    alone = first.partition("+")[0]
    labels = [one.label for one in _study(None, CONTROLS).methods]
    (two,) = (label for label in labels if label.startswith(f"{alone}+consistency(weight=0.0"))
    to_none, to_two, to_alone = (_study(one, CONTROLS) for one in (None, two, alone))
    return (
        f"Where the gain of `{first}` comes from: blur in one pass gains {difference(to_none, alone)} over `none`, a "
        f"second pass without the KL term adds {difference(to_alone, two)}, and the KL term adds "
        f"{difference(to_two, first)}."
    )


def all_settings() -> str:
    """Whether our methods stay better than R-Drop if all six settings of R-Drop are tried."""
    r_drop, (ours, first), seeds = with_all_settings()
    return (
        "So all six settings of each method were tried (R-Drop: weights up to 5). Tuning chose a weight of "
        f"{read_method(r_drop).comparators[0].weight:g} for R-Drop. Our method is {ours} better than that, and with a "
        f"weight of 1, as tuning chose it then, {first} ({seeds} seeds). Only the second number is one of equal "
        "tuning: the search tried more combinations, with more seeds, than R-Drop had settings. (`longer` had "
        "three trials only.)"
    )


def with_all_settings() -> tuple[str, list[str], int]:
    """R-Drop as it was chosen then, what two methods of ours are better, and the number of seeds.

    The method of the search ran in another table, with the same seeds. It is corrected together with all comparisons
    of this table with R-Drop.
    """
    study = _study(None, WIDE)
    (r_drop,) = (one for one in study.methods if one.label.startswith("r-drop("))
    (first,) = (one for one in study.methods if "+consistency(" in one.label)
    family = [method(_study(None), studies.SEARCHED), *(one for one in study.methods if one is not r_drop)]
    after = corrected([paired_difference(one.scores, r_drop.scores) for one in family])
    found = [after[0], after[family.index(first)]]
    if not all(each.marked and each.mean > 0 for each in found):
        raise SystemExit(f"{WIDE}: our method is not better than R-Drop: H3 is withdrawn, write the summaries anew")
    shown = [each.times(study.primary.factor) for each in found]
    words = [f"{signed(each.mean, 1)} points {each.holm_interval.text(1)}" for each in shown]
    return r_drop.label, words, len(r_drop.scores)


def bullets() -> str:
    """All sentences, as a list."""
    found, equal = sentences(), equal_time()
    lines = (
        f"{found['longer']} {equal['twice']}",
        f"{equal['gain']} {equal['condition']}",
        f"{found['best']} {found['weight']}",
        f"R-Drop had tried weights up to 1.0 only. {all_settings()} {found['trials']}",
        found["alone"],
        found["calibration"],
        parts(),
    )
    return "\n".join(f"- {line}" for line in lines)


def in_short() -> str:
    """What other pages say of it."""
    ours, longer = studies.SEARCHED, picked(studies.SCARCE, studies.is_called("longer"))
    to_none = _study(None)
    if not is_better(to_none, ours):
        raise SystemExit(f"{FOLDER}: {ours} is not better than none: write the sentence anew")
    sentences()  # stops if hard masking or blur alone differs from `none`, or our method from twice the epochs
    lines = (
        "On CIFAR-10 with 20 % of the training set, hard masking alone and blur alone show no gain. Blur with a "
        f"consistency loss of weight {wrong_labels.weight(ours):g} (`ad.presets.vision()`) gains "
        f"{difference(to_none, ours)}. It is not better than twice the epochs without a method, which gain "
        f"{difference(to_none, longer)}. But they take longer.",
        wrong_labels.in_short(),
        translation.in_short(),
        cifar_100.in_short(),
    )
    return "\n".join(f"- {line}" for line in lines)


def attacks() -> str:
    """The table of attacks with a weakness, and the epsilon that leaves what the paper reports."""
    page = WEAK_ATTACKS.read_text(encoding="utf-8")
    return page[page.index("| attack |") :].strip()


def settings_changed() -> str:
    """What six settings in place of three changed: methods as they were chosen then, to those of the screen.

    Both have the same seeds. The intervals are corrected for all methods whose settings changed.
    """
    then, now = _study(None), _study(None, WIDE)
    known = {one.label for one in then.methods}
    pairs = [(one, _same_kind(one, then)) for one in now.methods if one.label not in known]
    found = corrected([paired_difference(one.scores, other.scores) for one, other in pairs])
    lines = []
    for (one, other), apart in zip(pairs, found, strict=True):
        shown = apart.times(now.primary.factor)
        lines.append(f"`{one.label}` to `{other.label}`: {signed(shown.mean, 1)} points {shown.holm_interval.text(1)}")
    return "\n".join(f"  - {line}" for line in lines)


def _same_kind(one: tables.Method, study: tables.Study) -> tables.Method:
    """The method of another study with the same parts. (The control of R-Drop without its loss comes after R-Drop.)"""
    parts = [term.name for term in terms(one.label)]
    return next(other for other in study.methods if [term.name for term in terms(other.label)] == parts)


def _sureness(ours: str, longer: str) -> str:
    """Whether the calibration error of our method is one shift."""
    errors = {one.label: 100 * statistics.fmean(one.columns["test_ece"]) for one in _study(None).methods}
    return sureness.sentence(studies.SCARCE.folder, ours, longer, errors)


def _repeated_trials() -> str:
    """How much a trial depends on rounding: trials of the screen that were made again, with the same seed."""
    first, again = (_trials(folder) for folder in (SCREEN, WIDE))
    apart = [again[label] - first[label] for label in first.keys() & again.keys()]
    deviation = 100 * math.sqrt(statistics.fmean(each**2 for each in apart) / 2)
    return (
        f"A trial is not exact: {len(apart)} trials were made twice with the same settings and the same seed, and "
        f"rounding alone gives a trial a standard deviation of {deviation:.1f} points. So the choice among settings "
        "that differ by less is nearly one at random."
    )


def _trials(folder: Path) -> dict[str, float]:
    """Setting -> validation accuracy of its trial, of those that finished."""
    rows = [row for row in csv_rows(folder / "results.csv") if row["part"] == "tuning" and row["status"] == "finished"]
    return {row["method"]: float(row["validation_accuracy"]) for row in rows}


def _study(baseline: str | None, folder: Path = FOLDER) -> tables.Study:
    return tables.read(folder, baseline)
