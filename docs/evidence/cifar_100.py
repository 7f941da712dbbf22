"""What study 2 shows on CIFAR-100, as sentences whose numbers come from its published results, however far it is."""

from __future__ import annotations

import statistics

import checks
import studies
import tables
from other_claims import complete
from result_files import csv_rows, recipe_of
from studies import FULL, Runs, is_called
from wording import difference, method

from attentiondrop.experiments.methods.parse import terms

FOLDER = studies.RESULTS / FULL.folder
#: A difference with fewer common seeds than this gets no sentence.
FEWEST = 3
#: R-Drop without its loss.
CONTROL = "r-drop(weight=0.0)"
CHANGED = "protocol.md#changed-during-study-2"


def bullets() -> str:
    """How far it is, what differs from `none`, how short the training is, and what tuning saw."""
    study = tables.read(FOLDER)
    lines = (_progress(study), *_to_none(study), *_to_longer(study), _short(study), _trials())
    return "\n".join(f"- {line}" for line in lines)


def state() -> str:
    """How far it is, in a few words: `13 of 50 runs are done`."""
    return "all runs are done" if complete(FOLDER) else f"{tables.ended(FOLDER)} runs are done"


def in_short(with_worse: bool = False) -> str:
    """What other pages say of it: that no regulariser is better, if so. `with_worse`: and which of them are worse."""
    study = tables.read(FOLDER)
    so_far = "" if complete(FOLDER) else " so far"
    better, worse = (_listed(study, kind) for kind in ("better", "worse"))
    said = f"{better} better than no method" if better else "no regulariser was shown to be better than no method"
    said += f"{so_far}; {worse} worse" if with_worse and worse else ""
    return f"On CIFAR-100 with short training ({state()}), {said}{so_far}."


def _listed(study: tables.Study, kind: str) -> str:
    """The regularisers of a kind with their differences, and the verb; nothing if there are none."""
    labels = [label for label, told in _told(study).items() if told == kind and not _is_control(label)]
    shown = [f"`{label}` ({difference(study, label)})" for label in labels]
    return f"{' and '.join(shown)} {'is' if len(shown) == 1 else 'are'}" if shown else ""


def beside() -> str:
    """What must be read beside the headline claims about CIFAR-100."""
    lines = [
        f"H2 and H7 [were changed]({CHANGED}) when some scores of CIFAR-100 were known: H2 is no longer about R-Drop "
        "alone, and H7 asks for R-Drop's gain, but for half of the assumed gain at least."
    ]
    if not complete(FOLDER):
        lines.append("CIFAR-100 [is not complete](cifar-100.md): it judges no claim yet.")
    return "\n".join(f"- {line}" for line in lines)


def weak_rivals() -> str:
    """What must be read beside the paper's comparisons, if dropout or R-Drop is worse than no method; else nothing."""
    if not complete(FOLDER):
        return ""
    study = tables.read(FOLDER)
    found = [one.label for name in ("dropout", "r-drop") if (one := FULL.pick(is_called(name))) is not None]
    shown = [f"`{label}` {difference(study, label)}" for label in found if _told(study).get(label) == "worse"]
    if not shown:
        return ""
    return (
        f"The same holds for P2 to P5 on CIFAR-100: to no method, {' and '.join(shown)}. What is better than these "
        "need not be better than no method."
    )


def _progress(study: tables.Study) -> str:
    """How many runs are done, and how many of them failed."""
    failed = [row for row in tables.final_runs(FOLDER) if row["status"] not in ("finished", "missing")]
    ends = f" {len(failed)} of them failed." if failed else ""
    if complete(FOLDER):
        return f"The study is complete: all runs of {len(study.methods)} methods have ended.{ends}"
    with_runs = sum(bool(one.scores) for one in study.methods)
    return (
        f"**The study is not complete**: {tables.ended(FOLDER)} runs have ended, of {with_runs} of "
        f"{len(study.methods)} methods.{ends} It judges no claim yet. The corrections count methods that share two "
        "seeds with `none`, so they will become stricter."
    )


def _to_none(study: tables.Study) -> list[str]:
    """All differences to `none`: first what is better, then what is not told apart, then what is worse."""
    said = {
        "better": "Better than `none`, after Holm's correction",
        "not told apart": "Not told apart from `none`",
        "worse": "**Worse than `none`**",
    }
    told, lines = _told(study), []
    if not _listed(study, "better"):
        start = "No" if complete(FOLDER) else "So far, no"
        lines.append(f"**{start} regulariser was shown to be better than `none`.**")
    for kind, words in said.items():
        if shown := [_with_seeds(study, label) for label in told if told[label] == kind]:
            lines.append(f"{words}: {'; '.join(shown)}.")
    if few := [f"`{one.label}`" for one in study.methods[1:] if one.scores and one.label not in told]:
        lines.append(f"Fewer than three seeds, so nothing is said yet: {', '.join(few)}.")
    return lines


def _with_seeds(study: tables.Study, label: str) -> str:
    """A method, its difference to the baseline of the study, and the seeds that both have."""
    return f"`{label}` {difference(study, label)}, {len(method(study, label).difference.seeds)} seeds"


def _to_longer(study: tables.Study) -> list[str]:
    """Our searched method to `none` with twice the epochs, if both have run."""
    longer = FULL.pick(is_called("longer"))
    if longer is None:
        return []
    other = tables.read(FOLDER, longer.label)
    if studies.SEARCHED not in _told(other):
        return []
    return [f"To `{longer.label}`, which is `none` with twice the epochs: {_with_seeds(other, studies.SEARCHED)}."]


def _is_control(label: str) -> bool:
    """Whether it is `none` for longer, or two passes without a loss."""
    return _kind(label) in ("longer", CONTROL)


def _told(study: tables.Study) -> dict[str, str]:
    """Method -> whether it is better or worse than the baseline. Those with fewer seeds than three are left out."""
    apart = {one.label: one.difference for one in study.methods}
    enough = {label: each for label, each in apart.items() if each and each.holm_interval and len(each.seeds) >= FEWEST}
    return {
        label: ("better" if each.mean > 0 else "worse") if each.marked else "not told apart"
        for label, each in enough.items()
    }


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
