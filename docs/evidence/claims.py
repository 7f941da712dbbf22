"""The headline claims and the comparisons of the paper, judged by the published results of the studies."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import curves
import other_claims
import plan
import tables
import verdicts

from attentiondrop.experiments.analysis.intervals import Difference, corrected, paired_difference, signed
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.methods.passes import passes
from attentiondrop.parsing import split_terms

HERE = Path(__file__).parent
RESULTS = HERE / "results"
#: A method of one of these kinds is one of ours.
OURS = ("hard", "blur", "noise", "tailblur", "tailhard")
#: The verdict of a headline claim that holds.
EARNED = "**earned**"


@dataclass(frozen=True)
class Runs:
    """The finished final runs of one method in a study: seed -> score."""

    label: str
    test: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=dict)
    ece: dict[int, float] = field(default_factory=dict)
    #: GPU seconds; empty if they were not measured.
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The kinds of its parts, such as ["blur", "consistency"]."""
        return [term.partition("(")[0] for term in split_terms(self.label)]


def read(folder: Path, metric: str) -> list[Runs]:
    """The methods of a study, none if it was not published."""
    if not (folder / "results.csv").exists():
        return []
    found: dict[str, Runs] = {}
    for row in tables.final_runs(folder):
        if row["status"] == "finished":
            runs, seed = found.setdefault(row["method"], Runs(row["method"])), int(row["seed"])
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
    #: Methods that joined the table when it was known. They are shown, and make no claim.
    joined: tuple[str, ...] = ()

    def methods(self) -> list[Runs]:
        """The methods that it tested."""
        return read(RESULTS / self.folder, self.metric)

    def pick(self, is_one: Callable[[Runs], bool]) -> Runs | None:
        """The tested runs of the method that the validation part prefers, among those that can make a claim."""
        tested = {runs.label: runs for runs in self.methods() if is_one(runs) and runs.label not in self.joined}
        judged = read(RESULTS / (self.chosen_by or self.folder), self.metric)
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
NOISY = Study("cifar10-20pct-noise", joined=(SEARCHED,))
NOISY_AGAIN = Study("cifar10-20pct-noise-again", searched=SEARCHED)
FULL = Study("cifar100")
#: The search of study 3 (translation.md) chose it.
SEARCHED_IN_TEXT = "r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3)"
TRANSLATION = Study("multi30k-en-de", metric="bleu", factor=1.0, searched=SEARCHED_IN_TEXT)


def cheap(runs: Runs) -> bool:
    """One of ours that takes at most two thirds of the two passes of R-Drop."""
    return is_ours(runs) and passes(read_method(runs.label)) <= 4 / 3 + 1e-9


#: Claim -> the study, which of ours (None: `Study.ours`), and what it is compared with. In translation, the model has
#: dropout at its published rate without a method, so `none` is one of the dropouts.
HEADLINES: dict[str, tuple[Study, Callable[[Runs], bool] | None, Callable[[Runs], bool]]] = {
    "H1": (FULL, None, is_called("longer")),
    "H2": (FULL, None, is_called("r-drop")),
    "H3": (SCARCE, None, is_called("dropout", "dropkey", "r-drop")),
    "H4": (NOISY, None, is_called("dropout", "dropkey", "r-drop")),
    "H5": (TRANSLATION, None, is_called("none", "dropout")),
    "H6": (TRANSLATION, None, is_called("r-drop")),
    "H7": (FULL, cheap, is_called("none")),
    "H8": (NOISY_AGAIN, None, is_called("r-drop")),
}
#: Claims with a limit of GPU time: at most this share of that of another method.
TIMES: dict[str, tuple[Callable[[Runs], bool], float]] = {
    "H1": (is_called("longer"), 1.0),
    "H2": (is_called("r-drop"), 1.0),
    "H7": (is_called("r-drop"), 2 / 3),
}


def over_its_time(claim: str, study: Study, ours: Runs) -> str | None:
    """Why the GPU time of a method does not allow a claim about it; None if it does."""
    if claim not in TIMES:
        return None
    is_other, share = TIMES[claim]
    other = study.pick(is_other)
    if other is None or not other.seconds or not ours.seconds:
        return "not complete: GPU time was not measured"
    found = statistics.fmean(ours.seconds.values()) / statistics.fmean(other.seconds.values())
    return None if found <= share else f"not earned: {found:.2f} of the GPU time of `{other.label}`"


def headlines() -> list[list[str]]:
    """A row for each headline claim; its last cell is the verdict."""
    rows = []
    for claim in plan.CLAIMS:
        study, is_one, is_other = HEADLINES[claim.name]
        ours, theirs = study.ours() if is_one is None else study.pick(is_one), study.pick(is_other)
        found = None if ours is None or theirs is None else paired_difference(ours.test, theirs.test)
        rows.append((claim, study, ours, theirs, None if found is None else found.times(study.factor)))
    # Claims that were not measured count in the correction, as if nothing had been found.
    nothing = Difference(0.0, None, None, 1.0, (), ())
    after = corrected([found or nothing for *_, found in rows])
    found_rows = []
    for (claim, study, ours, theirs, found), judged in zip(rows, after, strict=True):
        head = [claim.name, claim.words, f"+{claim.figure:g} {claim.unit}"]
        if found is None or judged is None or ours is None or theirs is None:
            found_rows.append([*head, "", "", "", "", verdicts.NOT_MEASURED])
            continue
        need = r_drop_gain(study) if claim.name == "H7" else claim.figure
        interval = "-" if judged.holm_interval is None else judged.holm_interval.text(2)
        cells = [*head, f"`{ours.label}`", f"`{theirs.label}`", str(len(found.seeds))]
        words = verdict(judged, need, claim.seeds)
        if words == EARNED:
            words = over_its_time(claim.name, study, ours) or EARNED
        found_rows.append([*cells, f"{signed(found.mean, 2)} {interval}", words])
    return found_rows


def headline_table() -> str:
    """The headline claims."""
    headings = "claim | what | figure | of ours | compared with | seeds | difference [after Holm] | verdict"
    return table(headings, headlines())


def beside_scarce() -> str:
    """What H3 does not ask: how its method does against `none` with twice the epochs."""
    ours, longer = SCARCE.ours(), SCARCE.pick(is_called("longer"))
    if ours is None or longer is None:
        return "H3 was not measured."
    study = tables.read(RESULTS / SCARCE.folder, longer.label)
    (found,) = (one.difference for one in study.methods if one.label == ours.label)
    if found is None or found.holm_interval is None:
        raise SystemExit(f"{RESULTS / SCARCE.folder}: expected an interval for {ours.label}")
    word = ("wins" if found.mean > 0 else "loses") if found.marked else "is not told apart"
    shown = found.times(SCARCE.factor)
    return (
        "H3 compares with dropout, DropKey and R-Drop. Against `none` with twice the epochs, the same method "
        f"**{word}**: {shown.mean:+.2f} points {shown.holm_interval.text(2)} to `{longer.label}`, corrected over all "
        f"{len(study.methods) - 1} comparisons with it. (It takes less GPU time, see [study 1](study-1.md#confirm).) "
        "The protocol asks to compare methods with two passes with `longer` "
        "([headline claims](protocol.md#headline-claims)). So read H3 only together with this line."
    )


def table(headings: str, rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [headings.split(" | "), ["---"] * (headings.count(" | ") + 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def summary() -> str:
    """What comes first on the page: how many claims are earned, and how many are not."""
    ours = [row[-1] for row in headlines()]
    earned, failed = ours.count(EARNED), sum(each.startswith("not earned") for each in ours)
    judged = [row[-1] for row in comparisons()]
    words = (verdicts.REPRODUCED, verdicts.NOT_REPRODUCED, verdicts.NOT_RESOLVED, verdicts.NOT_MEASURED)
    counts = [judged.count(each) for each in words]
    return (
        f"**{earned} of {len(ours)} headline claims are earned, {failed} are not, "
        f"{len(ours) - earned - failed} are not measured or not complete. "
        f"{counts[0]} of {len(judged)} comparisons of the paper are reproduced, {counts[1]} are not, "
        f"{counts[2]} are not resolved, {counts[3]} are not measured. {other_claims.counted(others())}**"
    )


def r_drop_gain(study: Study) -> float | None:
    """What R-Drop gains over `none`, in the unit of the study; None if that was not measured."""
    theirs, none = study.pick(is_called("r-drop")), study.pick(is_called("none"))
    found = None if theirs is None or none is None else paired_difference(theirs.test, none.test)
    return None if found is None else found.mean * study.factor


def verdict(found: Difference, figure: float | None, seeds: int) -> str:
    """Whether a claim is earned: the estimate reaches the figure, and the corrected interval is above zero."""
    if figure is None:
        return "not complete: the gain of R-Drop was not measured"
    if len(found.seeds) < seeds:
        return f"not complete: {len(found.seeds)} of {seeds} seeds"
    above = found.marked and found.holm_interval is not None and found.holm_interval.low > 0
    if above and found.mean >= figure:
        return EARNED
    return "not earned: " + ("below the figure" if above else "the interval includes zero or less")


@dataclass(frozen=True)
class Said:
    """A comparison that the paper makes."""

    name: str
    ours: str
    theirs: str
    #: Whether it is about the calibration error, which should be lower.
    is_ece: bool = False


PAPER = (
    Said("P1", "hard", "dropout"),
    Said("P3", "blur", "dropout"),
    Said("P4", "blur+consistency", "r-drop"),
    Said("P5", "hard", "r-drop"),
    Said("P5", "blur", "r-drop"),
    Said("P7", "hard", "dropout", True),
    Said("P7", "blur", "dropout", True),
    Said("P7", "blur+consistency", "r-drop", True),
)
STUDIES = {"CIFAR-10, 20 %": SCARCE, "CIFAR-100": FULL}
#: In the protocol, this claim has another number for CIFAR-100; the others are about both data sets.
ON_CIFAR_100 = {"P1": "P2"}


def comparisons() -> list[list[str]]:
    """A row for each comparison of the paper in each study. Accuracy and calibration are two families."""
    rows = []
    for title, study in STUDIES.items():
        for is_ece in (False, True):
            claims = [said for said in PAPER if said.is_ece == is_ece]
            found = corrected([compared(study, said) for said in claims])
            rows += [paper_row(title, said, each) for said, each in zip(claims, found, strict=True)]
    return rows


def paper_table() -> str:
    """What the studies say about the comparisons of the paper."""
    return table(
        "claim | study | comparison | measure | seeds | difference, points [after Holm] | verdict", comparisons()
    )


def compared(study: Study, said: Said) -> Difference | None:
    """The difference of the two methods, in points."""
    ours, theirs = study.pick(is_of_the_paper(said.ours)), study.pick(is_called(said.theirs))
    if ours is None or theirs is None:
        return None
    pair = (ours.ece, theirs.ece) if said.is_ece else (ours.test, theirs.test)
    found = paired_difference(*pair)
    return None if found is None else found.times(100.0)


def paper_row(title: str, said: Said, found: Difference | None) -> list[str]:
    """One row of the table."""
    name = ON_CIFAR_100.get(said.name, said.name) if title == "CIFAR-100" else said.name
    head = [name, title, f"`{said.ours}` - `{said.theirs}`", "ECE" if said.is_ece else "accuracy"]
    if found is None:
        return [*head, "", "", verdicts.NOT_MEASURED]
    interval = "-" if found.holm_interval is None else found.holm_interval.text(2)
    return [*head, str(len(found.seeds)), f"{signed(found.mean, 2)} {interval}", reproduced(found, said.is_ece)]


def reproduced(found: Difference, is_ece: bool) -> str:
    """What the protocol calls success and failure: beyond zero, or within 0.3 points, or on the wrong side.

    For a calibration error (P7), every interval that is not below zero is a failure.
    """
    interval = found.holm_interval
    if interval is None:
        return verdicts.NOT_RESOLVED
    low, high = (-interval.high, -interval.low) if is_ece else (interval.low, interval.high)
    if low > 0:
        return verdicts.REPRODUCED
    if is_ece:  # P7 of the protocol: an interval that is not below zero is a failure
        return verdicts.NOT_REPRODUCED
    return verdicts.NOT_REPRODUCED if high < 0 or interval.within(0.3) else verdicts.NOT_RESOLVED


# --- claims of the paper that results.csv does not decide ------------------------------------------------------------


def confirmed() -> dict[str, str | None]:
    """For each method of P12 and P13: the one that was confirmed in study 1, as in the comparisons above."""
    chosen = {name: SCARCE.pick(is_of_the_paper(name)) for name in curves.CONVERGING}
    chosen[curves.BASELINE] = SCARCE.pick(is_called(curves.BASELINE))
    return {name: None if runs is None else runs.label for name, runs in chosen.items()}


def convergence_table() -> str:
    """P12."""
    return table(curves.CONVERGENCE_HEADINGS, [each.row() for each in curves.convergence(confirmed())])


def training_loss_table() -> str:
    """P13."""
    return table(curves.TRAINING_LOSS_HEADINGS, [curves.training_loss(confirmed()).row()])


def others() -> dict[str, other_claims.Judged]:
    """Every claim of the paper that is not among the comparisons."""
    labels = confirmed()
    sooner, loss = curves.convergence(labels), curves.training_loss(labels)
    parts = ", ".join(f"`{each.name}` {curves.told(each.epochs, 1) or '-'}" for each in sooner)
    judged = {
        "P12": other_claims.Judged(
            verdicts.together([each.verdict for each in sooner]),
            f"Difference to `none`, epochs: {parts}. GPU seconds: "
            f"`{sooner[-1].name}` {curves.told(sooner[-1].seconds, 1) or '-'}",
            "[below](#p12-convergence)",
        ),
        "P13": other_claims.Judged(
            loss.verdict,
            f"Task loss + KL, difference to the task loss of `none`: {curves.told(loss.difference, 3) or '-'}",
            "[below](#p13-training-loss)",
        ),
    }
    return other_claims.judge([(row[0], row[-1]) for row in comparisons()], judged)


def others_table() -> str:
    """All of them."""
    return table(other_claims.HEADINGS, other_claims.rows(others()))
