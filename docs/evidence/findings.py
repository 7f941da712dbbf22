"""What study 1 found, as sentences whose numbers come from its published results."""

from __future__ import annotations

import statistics
from pathlib import Path

import claims
import tables
import wrong_labels
from wording import calibration, difference, is_better, method, picked, time_ratio

from attentiondrop.experiments.analysis.intervals import corrected, paired_difference, signed
from attentiondrop.experiments.methods.parse import read_method, terms

FOLDER = Path(__file__).parent / "results" / claims.SCARCE.folder
#: The controls of our best method, with the seeds of the confirming table.
CONTROLS = Path(__file__).parent / "results" / "cifar10-20pct-controls"
#: All six settings of each method, with the seeds of the confirming table.
WIDE = Path(__file__).parent / "results" / "cifar10-20pct-wide"
#: What a second pass costs with other models.
METHODS_COST = Path(__file__).parents[2] / "benchmarks" / "results" / "methods-h200-torch2.11.csv"
WEAK_ATTACKS = Path(__file__).parents[2] / "benchmarks" / "results" / "weak-attacks-h200-torch2.11.md"


def sentences() -> dict[str, str]:
    """Name -> sentence. Intervals are those after Holm's correction over all comparisons with the same method."""
    ours = picked(claims.SCARCE, claims.is_ours)
    r_drop, longer = (picked(claims.SCARCE, claims.is_called(name)) for name in ("r-drop", "longer"))
    hard, blur = (picked(claims.SCARCE, claims.is_of_the_paper(name)) for name in ("hard", "blur"))
    to_none, to_r_drop, to_longer = (_study(one) for one in (None, r_drop, longer))
    over_none = {label: difference(to_none, label) for label in (ours, longer, hard, blur)}
    if any(method(to_none, label).difference.marked for label in (hard, blur)):
        raise SystemExit(f"{FOLDER}: hard masking or blur alone differs from none: write its sentence anew")
    same = wrong_labels.same_kernels()
    gain = (
        f"The best of our methods is `{ours}`. It gains {over_none[ours]} over `none`, and "
        f"{difference(to_r_drop, ours)} over tuned R-Drop"
    )
    lead = _lead_of_longer(to_longer, ours)
    most = max(to_none.methods, key=lambda one: statistics.fmean(one.scores.values())).label
    return {
        "longer": f"**With right labels, more epochs gain more{' than any method' if most == longer else ''}.** `none` "
        f"(no method) with twice the epochs gains {over_none[longer]}.",
        "gain": gain,
        "best": f"{gain} at {time_ratio(to_none, ours, r_drop)} of its GPU time ({_r_drop_elsewhere()}).",
        "lead": lead,
        "against": f"{lead}, but takes {time_ratio(to_none, longer, ours, 1)} times as "
        f"long ({time_ratio(same.to_none, same.longer, same.ours, 1)} times in the same kernels).",
        "alone": f"Hard masking alone ({over_none[hard]}) and blur alone ({over_none[blur]}) show no gain.",
        "calibration": calibration(FOLDER, ours, r_drop),
        "worse calibration": "The calibration error (ECE) of our method is higher than that of `none`: "
        f"{difference(tables.read(FOLDER, 'none', 'ece'), ours)}.",
    }


def controls() -> dict[str, str]:
    """What the controls tell of our best method: name -> sentence."""
    ours = picked(claims.SCARCE, claims.is_ours)
    alone = ours.partition("+")[0]
    labels = [one.label for one in _study(None, CONTROLS).methods]
    (longer,) = (label for label in labels if label.startswith("longer("))
    (two,) = (label for label in labels if label.startswith(f"{alone}+consistency(weight=0.0"))
    to_none, to_longer, to_two, to_alone = (_study(one, CONTROLS) for one in (None, longer, two, alone))
    same = wrong_labels.same_kernels()
    if float(time_ratio(same.to_none, same.ours, "none")) < read_method(longer).comparators[0].times:
        raise SystemExit(f"{CONTROLS}: a second pass is no dearer in the same kernels: write the sentences anew")
    if not is_better(to_longer, ours):
        raise SystemExit(f"{CONTROLS}: {ours} is not better than {longer}: that comes first, write the sentences anew")
    return {
        "gain at equal time": "With right labels and about equal GPU time, it was better than more epochs: "
        f"{difference(to_longer, ours)}.",
        "equal time": f"At about equal GPU time, it is better than more epochs: {difference(to_longer, ours)} over "
        f"`none` with {read_method(longer).comparators[0].times:g} times the epochs, at "
        f"{_equal_time(to_none, ours, longer)} of its GPU time (two sessions differ by that much).",
        "condition": "**This was measured only where a second pass is cheap and `none` is slow.** Here two passes take "
        f"{time_ratio(to_none, ours, 'none')} times as long as `none`: batches of 128 small images do not fill an "
        "H200, and `none` ran in torch's attention, our method in the faster kernels of this library. With these "
        f"kernels for both (with wrong labels), they took {time_ratio(same.to_none, same.ours, 'none')} times as long, "
        f"{_elsewhere()}. There, equal time is enough for more epochs than these, up to nearly twice as many. Here, "
        "twice the epochs are better than our method.",
        "parts": f"Where its gain comes from: blur in one pass gains {difference(to_none, alone)} over `none`, a "
        f"second pass without the KL term adds {difference(to_alone, two)}, and the KL term adds "
        f"{difference(to_two, ours)}.",
    }


def all_settings() -> str:
    """Whether our best method stays better than R-Drop if all six settings of both are tried."""
    r_drop, found, seeds = _with_all_settings()
    return (
        "So all six settings of each method were tried (R-Drop: weights up to 5). Tuning chose a weight of "
        f"{read_method(r_drop).comparators[0].weight:g} for R-Drop, and our method is {found} better ({seeds} seeds)."
    )


def _with_all_settings() -> tuple[str, str, int]:
    """R-Drop as it was chosen then, what our best method is better, and the number of seeds."""
    study = _study(None, WIDE)
    (r_drop,) = (one.label for one in study.methods if one.label.startswith("r-drop("))
    (ours,) = (one.label for one in study.methods if "+consistency(" in one.label)
    to_r_drop = _study(r_drop, WIDE)
    if not is_better(to_r_drop, ours):
        raise SystemExit(f"{WIDE}: {ours} is not better than R-Drop: H3 is withdrawn, write the summaries anew")
    return r_drop, difference(to_r_drop, ours), len(method(study, r_drop).scores)


def bullets() -> str:
    """All sentences, as a list."""
    found, more = sentences(), controls()
    lines = (
        found["longer"],
        f"{found['best']} {found['against']}",
        f"R-Drop had tried weights up to 1.0 only. {all_settings()}",
        found["alone"],
        found["calibration"],
        f"{more['equal time']} {more['condition']}",
        more["parts"],
    )
    return "\n".join(f"- {line}" for line in lines)


def short() -> str:
    """What the README says of it. Times are those of runs in the same kernels, which flatter our method less."""
    found, more, same = sentences(), controls(), wrong_labels.same_kernels()
    _, wider, _ = _with_all_settings()
    return "\n".join(
        (
            f"- {found['longer']} {found['alone']}",
            f"- {found['gain']} at {same.times()[0]} of its GPU time (with all six settings of both tried: {wider}). "
            f"{found['lead']}, but takes {time_ratio(same.to_none, same.longer, same.ours, 1)} times as long. "
            f"{found['worse calibration']}",
            f"- {wrong_labels.short('docs/evidence/')}",
            f"- {more['gain at equal time']} **But this was measured only where a second pass is cheap and `none` is "
            "slow**: see [study 1](docs/evidence/study-1.md).",
        )
    )


def in_short() -> str:
    """What other pages say of it."""
    ours, longer = picked(claims.SCARCE, claims.is_ours), picked(claims.SCARCE, claims.is_called("longer"))
    to_none = _study(None)
    if not (is_better(to_none, ours) and ours.startswith("blur(") and "+consistency(" in ours):
        raise SystemExit(f"{FOLDER}: our best method is not blur with a consistency loss: write the sentence anew")
    sentences()  # stops if hard masking or blur alone differs from `none`
    return (
        "On CIFAR-10 with 20 % of the training set, hard masking alone and blur alone show no gain. Blur with a "
        f"consistency loss gains {difference(to_none, ours)}.\nTraining without a method for twice the epochs gains "
        f"more: {difference(to_none, longer)}.\n{wrong_labels.in_short()} We have no study of another data set yet."
    )


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


def _study(baseline: str | None, folder: Path = FOLDER) -> tables.Study:
    return tables.read(folder, baseline)


def _lead_of_longer(to_longer: tables.Study, label: str) -> str:
    """How much better twice the epochs are: the difference, turned around."""
    found = method(to_longer, label).difference
    if found is None or found.holm_interval is None or not found.marked or found.mean > 0:
        raise SystemExit(f"{FOLDER}: twice the epochs are not better than {label}: write the sentence anew")
    shown = found.times(to_longer.primary.factor)
    low, high = -shown.holm_interval.high, -shown.holm_interval.low
    return f"`none` with twice the epochs is {-shown.mean:.1f} points [{low:.1f}, {high:.1f}] better"


def _elsewhere() -> str:
    """What the same pair of passes costs with other models."""
    rows = [row for row in tables.csv_rows(METHODS_COST) if row["method"] == "blur+consistency"]
    small, base = (next(float(row["cost"]) for row in rows if row["model"] == model) for model in ("small", "vit-b16"))
    return f"with a small ViT and batches of 256 {small:.2f} times, with ViT-B/16 {base:.2f} times"


def _equal_time(study: tables.Study, ours: str, longer: str) -> str:
    """GPU time to that of more epochs: by its own step, and by the step of `none`, which computes the same.

    The two were measured in different sessions.
    """
    times = read_method(longer).comparators[0].times
    found = sorted((float(time_ratio(study, ours, longer, 4)), float(time_ratio(study, ours, "none", 4)) / times))
    return " to ".join(f"{each:.2f}" for each in found)


def _r_drop_elsewhere() -> str:
    """What our second pass costs to that of R-Drop with other models."""
    found = []
    for model in ("small", "vit-b16"):
        cost = {row["method"]: float(row["cost"]) for row in tables.csv_rows(METHODS_COST) if row["model"] == model}
        found.append(f"{cost['blur+consistency'] / cost['r-drop']:.2f}")
    same = wrong_labels.same_kernels()
    kernels = f"{same.times()[0]} if both use the kernels of this library"
    return f"{kernels}, {found[0]} with a small ViT and batches of 256, {found[1]} with ViT-B/16"
