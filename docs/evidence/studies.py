"""Where the runs of the studies are published, and which method stands for its kind: the validation part decides."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tables

from attentiondrop.parsing import split_terms

RESULTS = Path(__file__).parent / "results"
#: A method of one of these kinds is one of ours.
OURS = ("hard", "blur", "noise", "tailblur", "tailhard")


@dataclass(frozen=True)
class Runs:
    """The final runs of one method in a study that have ended: seed -> score, of those that finished."""

    label: str
    test: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=dict)
    ece: dict[int, float] = field(default_factory=dict)
    #: GPU seconds; empty if they were not measured.
    seconds: dict[int, float] = field(default_factory=dict)
    #: Seeds whose runs ended without a score, such as those whose loss stopped being a number.
    failed: list[int] = field(default_factory=list)

    @property
    def parts(self) -> list[str]:
        """The kinds of its parts, such as ["blur", "consistency"]."""
        return [term.partition("(")[0] for term in split_terms(self.label)]


def read(metric: str, *folders: str) -> list[Runs]:
    """The methods of a study, none if it was not published. Its seeds may stand in several folders of results."""
    found: dict[str, Runs] = {}
    published = [RESULTS / name for name in folders if (RESULTS / name / "results.csv").exists()]
    for row in (row for folder in published for row in tables.final_runs(folder)):
        if row["status"] in tables.UNDONE:
            continue
        runs, seed = found.setdefault(row["method"], Runs(row["method"])), int(row["seed"])
        if row["status"] in tables.FAILED:
            runs.failed.append(seed)
        else:
            runs.test[seed] = float(row[f"test_{metric}"])
            others = {f"validation_{metric}": runs.validation, "test_ece": runs.ece, "gpu_seconds": runs.seconds}
            for name, numbers in others.items():
                if row.get(name):
                    numbers[seed] = float(row[name])
    return list(found.values())


def is_ours(runs: Runs) -> bool:
    """Whether a method is one of ours: a part of it is, whatever stands beside that part."""
    return any(part in OURS for part in runs.parts)


def is_called(*names: str) -> Callable[[Runs], bool]:
    """Whether a method is one of these kinds, and nothing else. R-Drop without its consistency loss is a control."""
    return lambda runs: "+".join(runs.parts) in names and not re.search(r"weight=0\.0\b", runs.label)


def is_of_the_paper(name: str) -> Callable[[Runs], bool]:
    """The same for a method as the paper has it: a masked logit becomes 0, and rates do not change."""
    return lambda runs: (
        is_called(name)(runs) and "fill=-inf" not in runs.label and runs.label.count("(") == len(runs.parts)
    )


def best(methods: Sequence[Runs], is_one: Callable[[Runs], bool]) -> Runs | None:
    """The method with the best mean on the validation part: no choice looks at a test score."""
    found = [runs for runs in methods if is_one(runs) and runs.validation]
    return max(found, key=lambda runs: statistics.fmean(runs.validation.values()), default=None)


@dataclass(frozen=True)
class Study:
    """Where the runs of a study are published, and by which runs its methods are chosen."""

    folder: str
    chosen_by: str | None = None
    metric: str = "accuracy"
    factor: float = 100.0
    #: What a search on validation data chose: with it, no other method of ours makes a claim.
    searched: str | None = None
    #: Methods that joined the table when it was known, or were stopped. They are shown, and make no claim.
    silent: tuple[str, ...] = ()
    #: More seeds of some of its methods, published on their own. They choose no method.
    more: str | None = None

    def methods(self) -> list[Runs]:
        """The methods that it tested."""
        return read(self.metric, self.folder, *([] if self.more is None else [self.more]))

    def pick(self, is_one: Callable[[Runs], bool]) -> Runs | None:
        """The tested runs of the method that the validation part prefers, among those that can make a claim."""
        tested = {runs.label: runs for runs in self.methods() if is_one(runs) and runs.label not in self.silent}
        judged = read(self.metric, self.chosen_by or self.folder)
        chosen = best(judged, lambda runs: runs.label in tested)
        return None if chosen is None else tested[chosen.label]

    def ours(self) -> Runs | None:
        """The tested runs of our method: what the search chose, or what the validation part prefers."""
        return self.pick(is_ours) if self.searched is None else self.named(self.searched)

    def named(self, label: str) -> Runs | None:
        """The tested runs of a method that is written so in full."""
        return next((runs for runs in self.methods() if runs.label == label), None)


#: The search (search.md) chose it, and its runs joined the confirming table.
SEARCHED = "blur(sigma_max=2.0)+consistency(weight=3.0)"
SCARCE = Study("cifar10-20pct-confirm", "cifar10-20pct-screen", searched=SEARCHED)
NOISY = Study("cifar10-20pct-noise", silent=(SEARCHED,))
NOISY_AGAIN = Study("cifar10-20pct-noise-again", searched=SEARCHED)
FULL = Study("cifar100", more="cifar100-more")
#: The search of study 3 (translation.md) chose it.
SEARCHED_IN_TEXT = "r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3)"
TRANSLATION = Study("multi30k-en-de", metric="bleu", factor=1.0, searched=SEARCHED_IN_TEXT, silent=(SEARCHED,))
