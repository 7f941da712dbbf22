"""What a published study shows, in sentences whose numbers come from its results, however far it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import tables
from other_claims import complete
from result_files import csv_rows
from studies import Runs
from wording import difference, method

#: A difference with fewer common seeds than this gets no sentence.
FEWEST = 3


def state(folder: Path) -> str:
    """How far it is, in a few words: `13 of 50 runs are done`."""
    if not (folder / "results.csv").exists():
        return "not begun"
    return "all runs are done" if complete(folder) else f"{tables.ended(folder)} runs are done"


def progress(folder: Path, study: tables.Study) -> str:
    """How many runs are done, and how many of them failed."""
    failed = sum(row["status"] in tables.FAILED for row in tables.final_runs(folder))
    ends = f" Runs that failed: {failed}." if failed else ""
    if complete(folder):
        return f"The study is complete: all runs of {len(study.methods)} methods have ended.{ends}"
    with_runs = sum(bool(one.scores) for one in study.methods)
    said = (
        f"**The study is not complete**: {tables.ended(folder)} runs have ended, of {with_runs} of "
        f"{len(study.methods)} methods.{ends} It judges no claim yet."
    )
    if trials := sum(row["status"] in tables.UNDONE for row in csv_rows(folder / "results.csv") if _is_trial(row)):
        said += f" Trials that are left: {trials}. Methods that still wait for theirs are not counted here."
    if any(one.difference is None or one.difference.holm_interval is None for one in study.methods[1:]):
        base = study.methods[0].label
        said += f" The corrections count methods that share two seeds with `{base}`, so they will become stricter."
    return said


def to_baseline(folder: Path, study: tables.Study) -> list[str]:
    """All differences to the baseline: first what is better, then what is not told apart, then what is worse."""
    base, is_done = f"`{study.methods[0].label}`", complete(folder)
    said = {
        "better": f"Better than {base}, after Holm's correction",
        "not told apart": f"Not told apart from {base}",
        "worse": f"**Worse than {base}**",
    }
    found, lines = told(study), []
    if not regularisers(study, "better"):
        lines.append(f"**{'No' if is_done else 'So far, no'} regulariser was shown to be better than {base}.**")
    for kind, words in said.items():
        if shown := [with_seeds(study, label) for label in found if found[label] == kind]:
            lines.append(f"{words}: {'; '.join(shown)}.")
    few = [f"`{one.label}`" for one in study.methods[1:] if (one.scores or is_done) and one.label not in found]
    if few:
        lines.append(f"Fewer than three seeds, so nothing is said{'' if is_done else ' yet'}: {', '.join(few)}.")
    return lines


def with_seeds(study: tables.Study, label: str) -> str:
    """A method, its difference to the baseline of the study, and the seeds that both have."""
    shown = difference(study, label, study.primary.brief_digits)
    return f"`{label}` {shown}, {len(method(study, label).difference.seeds)} seeds"


def told(study: tables.Study) -> dict[str, str]:
    """Method -> whether it is better or worse than the baseline. Those with fewer seeds than three are left out."""
    apart = {one.label: one.difference for one in study.methods}
    enough = {label: each for label, each in apart.items() if each and each.holm_interval and len(each.seeds) >= FEWEST}
    return {
        label: ("better" if study.primary.better(each.mean) > 0 else "worse") if each.marked else "not told apart"
        for label, each in enough.items()
    }


def regularisers(study: tables.Study, kind: str) -> list[str]:
    """The methods of a kind (see `told`) that are no controls."""
    base = study.methods[0].label
    return [label for label, words in told(study).items() if words == kind and not is_control(label, base)]


def is_control(label: str, baseline: str) -> bool:
    """Whether it is the baseline for longer, or two passes without a loss."""
    return is_longer(label, baseline) or re.search(r"weight=0\.0\b", label) is not None


def is_longer(label: str, baseline: str) -> bool:
    """Whether it has nothing that the baseline has not, but epochs."""
    return "longer" in Runs(label).parts and set(Runs(label).parts) <= {"longer", *Runs(baseline).parts}


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _is_trial(row: dict[str, str]) -> bool:
    return row["part"] != tables.FINAL
