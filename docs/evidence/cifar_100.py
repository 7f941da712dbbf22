"""What study 2 shows on CIFAR-100, as sentences whose numbers come from its published results, however far it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import checks
import studies
import study_words
import tables
from other_claims import complete
from result_files import csv_rows, recipe_of
from studies import FULL, SEARCHED, Runs, is_called
from wording import difference

from attentiondrop.experiments.methods.parse import terms

FOLDER = studies.RESULTS / FULL.folder
#: R-Drop without its loss.
CONTROL = "r-drop(weight=0.0)"
CHANGED = "protocol.md#changed-during-study-2"


def bullets() -> str:
    """How far it is, what differs from `none`, how short the training is, and what tuning saw."""
    study = tables.read(FOLDER)
    to_none = study_words.to_baseline(FOLDER, study)
    lines = (study_words.progress(FOLDER, study), *to_none, *_to_longer(), _short(study), _trials())
    return "\n".join(f"- {line}" for line in lines)


def state() -> str:
    """How far it is, in a few words: `13 of 50 runs are done`."""
    return study_words.state(FOLDER)


def in_short(with_worse: bool = False) -> str:
    """What other pages say of it: that no regulariser is better, if so. `with_worse`: and which of them are worse.

    That the preset is worse is always told.
    """
    study = tables.read(FOLDER)
    so_far = "" if complete(FOLDER) else " so far"
    labels = [one for one in study_words.regularisers(study, "worse") if with_worse or one == SEARCHED]
    better, worse = (_listed(study, each) for each in (study_words.regularisers(study, "better"), labels))
    said = f"{better} better than no method" if better else "no regulariser was shown to be better than no method"
    said += f"{so_far}; {worse} worse" if worse else ""
    longer = _longer()
    more = longer is not None and study_words.told(study).get(longer) == "better"
    beside = f" Twice the epochs gain {difference(study, longer)}." if better and more else ""
    return f"On CIFAR-100 with short training ({state()}), {said}{so_far}.{beside}"


def _listed(study: tables.Study, labels: Sequence[str]) -> str:
    """Methods with their differences, and the verb; nothing if there are none."""
    shown = [f"`{label}` ({difference(study, label)})" for label in labels]
    return f"{study_words.listed(shown)} {'is' if len(shown) == 1 else 'are'}" if shown else ""


def over_longer() -> str | None:
    """What the searched method gains over twice the epochs, if the study is complete and shows a gain."""
    longer = _longer()
    if longer is None or not complete(FOLDER):
        return None
    study = tables.read(FOLDER, longer)
    is_better = study_words.told(study).get(SEARCHED) == "better"
    return difference(study, SEARCHED) if is_better else None


def times() -> str:
    """What is known of the times of steps."""
    if any(row["gpu_seconds"] for row in tables.final_runs(FOLDER)):
        return (
            "GPU seconds of a run are its steps times the time of one step, which was measured alone: "
            "[the time of a step](results/cifar100/costs.json).\n\n"
            "![Test accuracy against GPU seconds](results/cifar100/cifar100-gpu-seconds.svg)"
        )
    return (
        "The table has no GPU time yet: only the steps of three methods [were timed alone]"
        "(../../benchmarks/results/study-steps-h200-torch2.11.md), with noise as images. There, R-Drop takes nearly "
        "twice as long as `none`, and what the search found takes less than R-Drop."
    )


def beside() -> str:
    """What must be read beside the headline claims about CIFAR-100."""
    lines = [
        f"H2 and H7 [were changed]({CHANGED}) when some scores of CIFAR-100 were known: H2 is no longer about R-Drop "
        "alone, and H7 asks for R-Drop's gain, but for half of the assumed gain at least.",
        "H2 does not ask for a gain over twice the epochs. H1 does, so read the two together.",
    ]
    if not complete(FOLDER):
        lines.append("CIFAR-100 [is not complete](cifar-100.md): it judges no claim yet.")
    return "\n".join(f"- {line}" for line in lines)


def weak_rivals() -> str:
    """What must be read beside the paper's comparisons, if dropout or R-Drop is worse than no method; else nothing."""
    if not complete(FOLDER):
        return ""
    study = tables.read(FOLDER)
    rivals = {"P2 and P3": FULL.pick(is_called("dropout")), "P4 and P5": FULL.pick(is_called("r-drop"))}
    told = study_words.told(study)
    weak = {claims: one.label for claims, one in rivals.items() if one is not None and told.get(one.label) == "worse"}
    if not weak:
        return ""
    shown = " and ".join(f"`{label}` {difference(study, label)}" for label in weak.values())
    return (
        f"The same holds for {'P2 to P5' if len(weak) > 1 else next(iter(weak))} on CIFAR-100: to no method, {shown}. "
        "A method that is better than that need not be better than no method."
    )


def _longer() -> str | None:
    """`none` with twice the epochs, as tuning chose it; None if it has not run."""
    found = FULL.pick(is_called("longer"))
    return None if found is None else found.label


def _to_longer() -> list[str]:
    """Our searched method to `none` with twice the epochs, if both have run."""
    longer = _longer()
    if longer is None:
        return []
    other = tables.read(FOLDER, longer)
    if SEARCHED not in study_words.told(other):
        return []
    shown = study_words.with_seeds(other, SEARCHED)
    return [f"To `{longer}`, which is `none` with twice the epochs: {shown}."]


def _short(study: tables.Study) -> str:
    """How much `none` still gains from more epochs: no method can be judged without that."""
    epochs = recipe_of(FOLDER)["recipe"]["training"]["epochs"]
    mean = 100 * statistics.fmean(study.methods[0].scores.values())
    twice, longest = (checks.chosen_of_cifar_100(one) for one in (2 * epochs, 3 * epochs))
    return (
        f"**{epochs} epochs are few.** `none` has {mean:.1f} % after them. In the "
        f"[check of the baseline](protocol.md#changed-before-the-first-run-of-a-study), one run of {2 * epochs} epochs "
        f"had {twice} %, and one of {3 * epochs} (with half of the weight decay) {longest} %, on the test part. So a "
        "method that slows training down may lose here and win in longer training: this was not tested."
    )


def _trials() -> str:
    """The best trial of each method."""
    rows = [row for row in csv_rows(FOLDER / "results.csv") if row["part"] == "tuning" and row["status"] == "finished"]
    epochs = recipe_of(FOLDER)["recipe"]["tuning"]["epochs"]
    best: dict[str, float] = {}
    for row in rows:
        kind = _kind(row["method"])
        best[kind] = max(best.get(kind, 0.0), 100 * float(row["validation_accuracy"]))
    shown = ", ".join(f"`{kind}` {best[kind]:.1f}" for kind in sorted(best, key=best.__getitem__, reverse=True))
    return (
        f"Trials ({epochs} epochs, twice as many for `longer`; one seed; validation part), the best of three for each "
        f"method, %: {shown}. How much rounding alone changes a trial was not measured here. "
        "[In study 1](study-1.md#confirm), with fewer validation images, it was about a point."
    )


def _kind(label: str) -> str:
    """A method without its settings. R-Drop without its loss is a control, and another method."""
    if Runs(label).parts == ["r-drop"] and not is_called("r-drop")(Runs(label)):
        return CONTROL
    return "+".join(term.name for term in terms(label))
