"""What study 1 found with 40 % wrong labels, as sentences whose numbers come from its published results."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import claims
import plan
import second_pass
import studies
import sureness
import tables
from result_files import recipe_of
from wording import calibration, difference, is_better, picked, time_ratio

from attentiondrop.experiments.methods.parse import read_method

FOLDER = Path(__file__).parent / "results" / studies.NOISY.folder


class Compared(NamedTuple):
    """One of our methods and those that it is compared with, and the study with each of them as the baseline."""

    ours: str
    r_drop: str
    longer: str
    to_none: tables.Study
    to_r_drop: tables.Study
    to_longer: tables.Study

    def over(self) -> tuple[str, ...]:
        """What ours gains over `none`, over R-Drop and over `none` with more epochs."""
        return tuple(difference(one, self.ours) for one in (self.to_none, self.to_r_drop, self.to_longer))

    def times(self) -> tuple[str, ...]:
        """Its GPU time to that of R-Drop, and of more epochs."""
        return tuple(time_ratio(self.to_none, self.ours, one) for one in (self.r_drop, self.longer))


def sentences() -> dict[str, str]:
    """Name -> sentence. Intervals are those after Holm's correction over all comparisons with the same method."""
    found = compared()
    searched()  # stops if what is said of it is not so
    over_none, over_r_drop, over_longer = found.over()
    of_r_drop, of_longer = found.times()
    return {
        "claim": _headline(found.ours, over_r_drop),
        "gain": f"`{found.ours}` gains {over_none} over `none`, and {over_r_drop} over tuned R-Drop at {of_r_drop} of "
        "its GPU time.",
        "longer": f"It is better than more epochs, too: {over_longer} over `none` with twice the epochs, at "
        f"{of_longer} of its GPU time. {_needs_no_cheap_pass()}",
        "searched": _searched(),
        "times": _exactness(),
        "others": _others(found),
        "calibration": f"{calibration(FOLDER, *found[:3])} {_its_calibration()}",
    }


def bullets() -> str:
    """All sentences, as a list."""
    return "\n".join(f"- {line}" for line in sentences().values())


def in_short() -> str:
    """What other pages say of it."""
    found, heavier = compared(), searched()
    return (
        f"With 40 % wrong labels, blur with a consistency loss of weight {weight(found.ours):g} gains "
        f"{found.over()[0]}, and twice the epochs gain less: {difference(found.to_none, found.longer)}. A weight of "
        f"{weight(heavier.ours):g} gains {heavier.over()[0]}. It was added when the other results were known."
    )


def compared() -> Compared:
    """The method that the study chose, and the others of the sentences."""
    return _compared(picked(studies.NOISY, studies.is_ours))


def searched() -> Compared:
    """What the search chose on right labels. It joined when the table was known, and makes no claim."""
    found = _compared(studies.SEARCHED)
    if not is_better(tables.read(FOLDER, compared().ours), found.ours):
        raise SystemExit(f"{FOLDER}: {found.ours} is not better than {compared().ours}: write the sentences anew")
    return found


def _compared(ours: str) -> Compared:
    """What the sentences say of one of our methods must be so."""
    r_drop, longer = (picked(studies.NOISY, studies.is_called(name)) for name in ("r-drop", "longer"))
    found = Compared(ours, r_drop, longer, *(tables.read(FOLDER, one) for one in (None, r_drop, longer)))
    for study in found[3:]:
        if not is_better(study, ours):
            raise SystemExit(f"{FOLDER}: {ours} is not better than {study.methods[0].label}: write the sentences anew")
    if not (ours.startswith("blur(") and "+consistency(" in ours):
        raise SystemExit(f"{FOLDER}: the best is {ours}: write the sentences anew")
    calibration(FOLDER, ours, r_drop, longer)  # stops if it is not worse than that of `none`
    return found


def same_kernels() -> Compared:
    """What the search chose, as a study of times: all methods ran in this library's kernels."""
    recipe = recipe_of(FOLDER)
    if not recipe["recipe"]["training"]["own_kernels"]:
        raise SystemExit(f"{FOLDER}: methods ran in different kernels: write the sentences about times anew")
    return searched()


def _figure() -> float:
    (figure,) = (claim.figure for claim in plan.CLAIMS if claim.name == "H4")
    return figure


def _headline(ours: str, found: str) -> str:
    """What became of the claim."""
    (row,) = (row for row in claims.headlines() if row[0] == "H4")
    if row[3] != f"`{ours}`" or not row[-1].startswith("not earned"):
        raise SystemExit(f"{FOLDER}: H4 is {row[-1]} with {row[3]}: write its sentence anew")
    return (
        f"**Our claim H4 is not earned.** It asked for +{_figure():g} points over the best of dropout, DropKey and "
        f"R-Drop. The best is {row[4]}, and our method is {found} better."
    )


def _searched() -> str:
    """What the search chose, which is `presets.vision()`."""
    found, first = searched(), compared().ours
    over_none, over_r_drop, over_longer = found.over()
    of_r_drop, of_longer = found.times()
    return (
        f"**What [the search](search.md) chose is better still**: `{found.ours}` gains {over_none} over `none`, "
        f"{over_r_drop} over tuned R-Drop at {of_r_drop} of its GPU time, {over_longer} over twice the epochs at "
        f"{of_longer} of their GPU time, and {difference(tables.read(FOLDER, first), found.ours)} over a weight of "
        f"{weight(first):g}. It joined when the other rows were known, so it earns no claim. And R-Drop tried three "
        "settings here, where the search tried nineteen combinations on right labels."
    )


def _needs_no_cheap_pass() -> str:
    """Whether twice the epochs take longer than two passes, with every model."""
    ratios = sorted([second_pass.in_study_1(), *second_pass.with_other_models()])
    translated = second_pass.in_translation()
    if ratios[-1] >= 2 or translated < 2:
        raise SystemExit(f"two passes take {ratios}, {translated:.2f} times as long as one: write their sentence anew")
    return (
        f"With the ViTs that we timed, two passes take {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as one, so "
        "there this comparison needs no cheap second pass. (With our translation model, they take "
        f"{translated:.1f} times as long.)"
    )


def _exactness() -> str:
    """How far two times of the same work differ: only the weight of the loss is another one."""
    first, found = compared().ours, searched().ours
    ratio = float(time_ratio(searched().to_none, first, found, 4))
    return (
        f"These ratios of times are not exact: `{first}` and `{found}` do the same work, and their steps, timed in the "
        f"same session, differ by {100 * abs(ratio - 1):.0f} %."
    )


def _its_calibration() -> str:
    """The calibration error of what the search chose."""
    found = searched()
    others = (tables.read(FOLDER, one, "ece") for one in ("none", found.r_drop, found.longer))
    to_none, to_r_drop, to_longer = (difference(one, found.ours) for one in others)
    return (
        f"With a weight of {weight(found.ours):g}, the difference to `none` is {to_none}, to R-Drop {to_r_drop}, to "
        f"twice the epochs {to_longer}. {_all_not_sure_enough()}"
    )


def _all_not_sure_enough() -> str:
    """The side on which all models err."""
    count, least = sureness.all_not_sure_enough(studies.NOISY.folder)
    return (
        f"All {count} models, those of `none` included, are right more often than they are sure, by at least "
        f"{int(least)} points. [Temperature scaling](../evaluation.md#calibration) is made for this; errors after it "
        "were not measured here."
    )


def weight(label: str) -> float:
    """The weight of its consistency loss."""
    return read_method(label).spec.consistency.weight


def _others(found: Compared) -> str:
    """Every other method."""
    shown = (*found[:3], studies.SEARCHED)
    rest = [one.label for one in found.to_none.methods[1:] if one.label not in shown]
    parts = [f"`{label}` {difference(found.to_none, label)}" for label in rest]
    return f"The other methods, to `none`: {', '.join(parts)}."
