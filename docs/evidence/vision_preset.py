"""What `presets.vision()` does in each study that ran it: the table of the front page, and the sentences around it."""

from __future__ import annotations

from dataclasses import dataclass

import cifar_100
import claims
import findings
import more_studies
import studies
import tables
import wrong_labels
import wrong_labels_again
from other_claims import complete
from wording import method

from attentiondrop.experiments.analysis.intervals import signed
from attentiondrop.presets import vision

HEADINGS = " | ".join(
    (
        "data (seeds)",
        "to no method",
        "to tuned R-Drop",
        "to twice the epochs without a method",
        "calibration error to no method",
    )
)
#: What a cell says where nothing was measured, or with fewer common seeds than this.
NOTHING, FEWEST = "-", 3
#: What the preset is compared with, in the order of the columns.
RIVALS = ("none", "r-drop", "longer")


@dataclass(frozen=True)
class Measured:
    """A study with the preset: its data, its page, and what must be said of the row."""

    data: str
    page: str
    study: studies.Study
    remark: str = ""


MEASURED = (
    Measured("CIFAR-10, 9,000 images", "study-1.md", studies.SCARCE),
    Measured("the same, 40 % of the labels wrong", "wrong-labels.md", studies.NOISY, "; this row was added later"),
    Measured("CIFAR-100, 45,000 images, short training", "cifar-100.md", studies.FULL),
    Measured(
        "translation, Multi30k", "translation.md", studies.TRANSLATION, "; BLEU, then stopped because of these scores"
    ),
)


def table(pages: str = "") -> str:
    """One row for each study. `pages`: where the pages of the evidence are."""
    if str(vision()) != studies.SEARCHED:
        raise SystemExit(f"presets.vision() is {vision()}, and {studies.SEARCHED} was measured: write the table anew")
    return tables.listed(HEADINGS, [row(one, pages) for one in MEASURED if can_be_told(one.study)])


def can_be_told(study: studies.Study) -> bool:
    """Whether the study is complete, and has the preset and its rivals with enough seeds, also if their runs failed."""
    ended = [runs for runs in study.methods() if len(runs.test) + len(runs.failed) >= FEWEST]
    is_there = [any(map(studies.is_called(name), ended)) for name in RIVALS]
    is_there.append(studies.SEARCHED in [runs.label for runs in ended])
    return complete(studies.RESULTS / study.folder) and all(is_there)


def row(measured: Measured, pages: str) -> list[str]:
    """The differences of the preset to other methods of a study, each corrected as in a table with that baseline."""
    study, ours = measured.study, measured.study.named(studies.SEARCHED)
    none, r_drop, longer = (study.pick(studies.is_called(name)) for name in RIVALS)
    cells = [apart(study, other) for other in (none, r_drop, longer)]
    error = apart(study, none, "ece") if _has_errors(study) else NOTHING
    seeds = f"{len(ours.test)} of {len(ours.test) + len(ours.failed)}" if ours.failed else str(len(ours.test))
    return [f"[{measured.data}]({pages}{measured.page}) ({seeds}{measured.remark})", *cells, error]


def apart(of: studies.Study, other: studies.Runs | None, metric: str | None = None) -> str:
    """The difference of the preset to another method, in bold if it survives the correction.

    None: all runs of the other method failed.
    """
    if other is None:
        return NOTHING
    study = tables.read(studies.RESULTS / of.folder, other.label, metric)
    found = method(study, studies.SEARCHED).difference
    if found is None or found.holm_interval is None or len(found.seeds) < FEWEST:
        return NOTHING
    shown = found.times(study.primary.factor)
    mean = signed(shown.mean, 1)
    return f"{f'**{mean}**' if found.marked else mean} {shown.holm_interval.text(1)}"


def front_page() -> str:
    """What the README says: what speaks against the methods first."""
    pages = "docs/evidence/"
    said, equal, noisy = findings.sentences(), findings.equal_time(), wrong_labels.compared()
    (row,) = (row for row in claims.headlines() if row[0] == "H4")
    _, (over_r_drop, equally), _ = findings.with_all_settings()
    if not row[-1].startswith("not earned"):
        raise SystemExit(f"H4 is {row[-1]}: write the sentence about it anew")
    return "\n".join(
        (
            f"**On 20 % of CIFAR-10, {said['alone'][0].lower()}{said['alone'][1:]} {to_twice_the_epochs()} In our one "
            "study of translation, it was worse than no method with each of three seeds. "
            f"{cifar_100.in_short()}**",
            "",
            "The figure shows all methods of the first row. The table shows the differences of the preset to others, "
            "in points, with intervals after Holm's correction. Bold: what survives it. A calibration error should be "
            f"small. Ours is large because its models are [right more often than they are sure]({pages}study-1.md).",
            "",
            table(pages),
            "",
            f"- {equal['gain']} Two passes are cheap there, see [study 1]({pages}study-1.md). {equal['twice']}",
            f"- With all six settings of R-Drop tried, the first difference to it is {over_r_drop}. The search for our "
            f"method tried more. With equal tuning the difference is {equally}.",
            f"- With wrong labels, our first [claim]({pages}claims.md) of {row[2]} over R-Drop **failed**: with a "
            f"weight of 1, as tuning chose it, the difference is {noisy.over()[1]}. The weight of 3 was tried after "
            f"that. With other seeds and heavier weights for R-Drop, it is {wrong_labels_again.earned()}: this second "
            "claim of +3 points is earned.",
        )
    )


def to_twice_the_epochs() -> str:
    """Where the preset is not better than twice the epochs. (`findings.sentences` stops if it is so in study 1.)"""
    start = "`ad.presets.vision()` is not better than twice the epochs without a method"
    others = {"CIFAR-100": cifar_100.over_longer()} if can_be_told(studies.FULL) else {}
    others |= more_studies.over_longer()
    better = ", ".join(f"{study} ({gain})" for study, gain in others.items() if gain is not None)
    if not better:
        return f"{start} if labels are right."
    count = f"{sum(gain is not None for gain in others.values())} of {len(others)}"
    return f"{start} on 20 % of CIFAR-10. It is better in {count} other studies of images with right labels: {better}."


def _has_errors(study: studies.Study) -> bool:
    """Whether the calibration was measured."""
    return bool(study.methods()[0].ece)
