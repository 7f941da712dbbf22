"""What study 1 found with 40 % wrong labels, as sentences whose numbers come from its published results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import claims
import plan
import tables
from wording import difference, is_better, method, percent, time_ratio

FOLDER = Path(__file__).parent / "results" / claims.NOISY.folder


def sentences() -> dict[str, str]:
    """Name -> sentence. Intervals are those after Holm's correction over all comparisons with the same method."""
    ours, r_drop, longer = _ours(), _picked(claims.is_called("r-drop")), _picked(claims.is_called("longer"))
    to_none, to_r_drop, to_longer = (tables.read(FOLDER, one) for one in (None, r_drop, longer))
    return {
        "claim": _headline(ours, difference(to_r_drop, ours)),
        "gain": f"`{ours}` gains {difference(to_none, ours)} over `none`, and {difference(to_r_drop, ours)} over tuned "
        f"R-Drop at {time_ratio(to_none, ours, r_drop)} of its GPU time.",
        "longer": f"It is better than more epochs, too: {difference(to_longer, ours)} over `none` with twice the "
        f"epochs, at {time_ratio(to_none, ours, longer)} of its GPU time. Twice the epochs take more time than two "
        "passes took with [any of our models](study-1.md). So this comparison needs no cheap second pass.",
        "others": _others(to_none, [ours, r_drop, longer]),
        "calibration": f"The calibration error (ECE) of our method is {percent(to_none, ours, 'test_ece')} %. That of "
        f"`none` is {percent(to_none, 'none', 'test_ece')} %, that of R-Drop {percent(to_none, r_drop, 'test_ece')} %. "
        "Less is better.",
    }


def bullets() -> str:
    """All sentences, as a list."""
    return "\n".join(f"- {line}" for line in sentences().values())


def short(folder: str) -> str:
    """What the README says of it. `folder`: where these pages are."""
    ours, r_drop, longer = _ours(), _picked(claims.is_called("r-drop")), _picked(claims.is_called("longer"))
    to_none, to_r_drop, to_longer = (tables.read(FOLDER, one) for one in (None, r_drop, longer))
    return (
        f"**With [40 % wrong labels]({folder}wrong-labels.md), the same method gains {difference(to_none, ours)}** "
        f"over `none`, {difference(to_r_drop, ours)} over tuned R-Drop at {time_ratio(to_none, ours, r_drop)} of its "
        f"GPU time, and {difference(to_longer, ours)} over `none` with twice the epochs at "
        f"{time_ratio(to_none, ours, longer)} of its GPU time. (Our [claim]({folder}claims.md) was "
        f"+{_figure():g} over R-Drop. It failed.) Its calibration error is worse than that of `none`, too."
    )


def in_short() -> str:
    """What other pages say of it."""
    ours, longer = _ours(), _picked(claims.is_called("longer"))
    to_none = tables.read(FOLDER)
    return (
        f"With 40 % wrong labels, blur with a consistency loss gains {difference(to_none, ours)}, and twice the epochs "
        f"gain less: {difference(to_none, longer)}."
    )


def _ours() -> str:
    """Our best method. What is said of it must be so."""
    ours, r_drop, longer = (_picked(one) for one in (claims.is_ours, *map(claims.is_called, ("r-drop", "longer"))))
    for other in (None, r_drop, longer):
        if not is_better(tables.read(FOLDER, other), ours):
            raise SystemExit(f"{FOLDER}: {ours} is not better than {other or 'none'}: write the sentences anew")
    errors = [float(percent(tables.read(FOLDER), one, "test_ece")) for one in (ours, "none")]
    if not (ours.startswith("blur(") and "+consistency(" in ours and errors[0] > errors[1]):
        raise SystemExit(f"{FOLDER}: the best is {ours}, or its calibration is good: write the sentences anew")
    return ours


def _picked(is_one: Callable[[claims.Runs], bool]) -> str:
    """The method that the validation part prefers."""
    found = claims.NOISY.pick(is_one)
    if found is None:
        raise SystemExit(f"{FOLDER}: expected one of ours, R-Drop and longer")
    return found.label


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


def _others(to_none: tables.Study, told: Sequence[str]) -> str:
    """Every other method."""
    parts = [
        f"`{one.label}` {difference(to_none, one.label)}"
        for one in to_none.methods[1:]
        if one.label not in told and method(to_none, one.label).difference is not None
    ]
    return f"The other methods, to `none`: {', '.join(parts)}."
