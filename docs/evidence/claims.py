"""The headline claims, judged by the published results of the studies, and all tables of the page of claims."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import comparisons
import curves
import more_studies
import other_claims
import plan
import scarce_or_noisy
import studies
import tables
import translation_claims
import verdicts
from studies import FULL, NOISY, NOISY_AGAIN, SCARCE, TRANSLATION, Runs, Study, is_called, is_of_the_paper, is_ours

from attentiondrop.experiments.analysis.intervals import Difference, corrected, paired_difference, signed
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.methods.passes import passes

#: The verdict of a headline claim that holds.
EARNED = "**earned**"
#: Its verdict if the method contains R-Drop, and R-Drop alone does as well.
EARNED_BY_R_DROP = f"{EARNED}, but by R-Drop, a part of the method"


def cheap(runs: Runs) -> bool:
    """One of ours that takes at most two thirds of the two passes of R-Drop."""
    return is_ours(runs) and passes(read_method(runs.label)) <= 4 / 3 + 1e-9


#: Claim -> the study, which of ours (None: `Study.ours`), and what it is compared with. In translation, the model has
#: dropout at its published rate without a method, so `none` is one of the dropouts. H2 would mean nothing over an
#: R-Drop that is worse than `none`, so it is compared with the better of the two.
HEADLINES: dict[str, tuple[Study, Callable[[Runs], bool] | None, Callable[[Runs], bool]]] = {
    "H1": (FULL, None, is_called("longer")),
    "H2": (FULL, None, is_called("none", "r-drop")),
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
    if other is None and (lost := all_failed(study, is_other)):
        return lost
    if other is None or not other.seconds or not ours.seconds:
        return "not complete: GPU time was not measured"
    found = statistics.fmean(ours.seconds.values()) / statistics.fmean(other.seconds.values())
    return None if found <= share else f"not earned: {found:.2f} of the GPU time of `{other.label}`"


def all_failed(study: Study, is_one: Callable[[Runs], bool]) -> str | None:
    """The verdict of a claim that needs a method of a kind, if all runs of this kind failed; None if not."""
    found = [runs for runs in study.methods() if is_one(runs)]
    if not found or any(runs.test for runs in found):
        return None
    return f"not earned: all runs of {' and '.join(f'`{runs.label}`' for runs in found)} failed"


@dataclass(frozen=True)
class Headline:
    """What was measured of a headline claim."""

    claim: plan.Claim
    study: Study
    ours: Runs
    theirs: Runs
    #: In the unit of the study.
    found: Difference
    #: What the difference must reach. None: the gain of R-Drop was not measured.
    need: float | None

    @property
    def given_up(self) -> bool:
        """Whether it has failed with its first seeds, by the rule of the protocol ("Changed during study 2")."""
        if self.claim.first is None or len(self.found.seeds) < self.claim.first:
            return False
        first = sorted(self.found.seeds)[: self.claim.first]
        mean = statistics.fmean(self.ours.test[seed] - self.theirs.test[seed] for seed in first) * self.study.factor
        return mean <= self.claim.figure / 2

    @property
    def lost(self) -> str | None:
        """Why it has failed, whatever its other seeds say; None if it has not."""
        if self.given_up:
            return f"not above half of the figure with its first {self.claim.first} seeds"
        failed = [f"{len(one.failed)} of `{one.label}`" for one in (self.ours, self.theirs) if one.failed]
        return f"runs failed, {' and '.join(failed)}" if failed else None

    @property
    def missing(self) -> str | None:
        """What is missing for a verdict."""
        if self.lost is not None:
            return None
        if self.need is None:
            return "not complete: the gain of R-Drop was not measured"
        if len(self.found.seeds) < self.claim.seeds:
            return f"not complete: {len(self.found.seeds)} of {self.claim.seeds} seeds"
        more = None if self.study.more is None else studies.RESULTS / self.study.more
        if more is not None and (more / "results.csv").exists() and not other_claims.complete(more):
            return f"not complete: {tables.ended(more)} runs with later seeds"
        return None


def measured(claim: plan.Claim) -> Headline | str:
    """A claim, or the verdict that it has without measurements.

    Methods are chosen among all that have run, so a study that is not complete judges nothing.
    """
    study, is_one, is_other = HEADLINES[claim.name]
    folder = studies.RESULTS / study.folder
    if not other_claims.complete(folder):
        has_begun = (folder / "results.csv").exists()
        return f"not complete: {tables.ended(folder)} runs" if has_begun else verdicts.NOT_MEASURED
    ours, theirs = study.ours() if is_one is None else study.pick(is_one), study.pick(is_other)
    found = None if ours is None or theirs is None else paired_difference(ours.test, theirs.test)
    if ours is None or theirs is None or found is None:
        return all_failed(study, is_other) or verdicts.NOT_MEASURED
    if claim.name == "H7" and (lost := all_failed(study, is_called("r-drop"))):
        return lost
    return Headline(claim, study, ours, theirs, found.times(study.factor), needed(claim, study))


def needed(claim: plan.Claim, study: Study) -> float | None:
    """The figure of a claim. That of H7 is what R-Drop gains, but at least half of what was assumed."""
    if claim.name != "H7":
        return claim.figure
    gain = r_drop_gain(study)
    return None if gain is None else max(gain, claim.figure / 2)


def headlines() -> list[list[str]]:
    """A row for each headline claim; its last cell is the verdict."""
    every = [measured(claim) for claim in plan.CLAIMS]
    # Claims that are open count in the correction as if nothing had been found: how far they are changes no other one.
    nothing = Difference(0.0, None, None, 1.0, (), ())
    after = corrected([nothing if isinstance(one, str) or one.missing else one.found for one in every])
    return [row(claim, one, judged) for claim, one, judged in zip(plan.CLAIMS, every, after, strict=True)]


def row(claim: plan.Claim, one: Headline | str, judged: Difference) -> list[str]:
    """One row, with the corrected difference."""
    head = [claim.name, claim.words, f"+{claim.figure:g} {claim.unit}"]
    if isinstance(one, str):
        return [*head, "", "", "", "", one]
    if one.need not in (None, claim.figure):
        head[2] = f"{one.need:+.2f} {claim.unit}"
    cells = [*head, f"`{one.ours.label}`", f"`{one.theirs.label}`", str(len(one.found.seeds))]
    if one.missing:
        return [*cells, "", one.missing]
    interval = "-" if judged.holm_interval is None else judged.holm_interval.text(2)
    words = verdict(judged, one)
    if words == EARNED and translation_claims.owes_r_drop(one.study, one.ours):
        words = EARNED_BY_R_DROP
    if words.startswith(EARNED):
        words = over_its_time(claim.name, one.study, one.ours) or words
    return [*cells, f"{signed(one.found.mean, 2)} {interval}", words]


def headline_table() -> str:
    """The headline claims."""
    headings = "claim | what | figure | of ours | compared with | seeds | difference [after Holm] | verdict"
    return tables.listed(headings, headlines())


def beside_scarce() -> str:
    """What H3 does not ask: how its method does against `none` with twice the epochs."""
    ours, longer = SCARCE.ours(), SCARCE.pick(is_called("longer"))
    if ours is None or longer is None:
        return "H3 was not measured."
    study = tables.read(studies.RESULTS / SCARCE.folder, longer.label)
    (found,) = (one.difference for one in study.methods if one.label == ours.label)
    if found is None or found.holm_interval is None:
        raise SystemExit(f"{studies.RESULTS / SCARCE.folder}: expected an interval for {ours.label}")
    word = ("wins" if found.mean > 0 else "loses") if found.marked else "is not told apart"
    shown = found.times(SCARCE.factor)
    return (
        "H3 compares with dropout, DropKey and R-Drop. Against `none` with twice the epochs, the same method "
        f"**{word}**: {shown.mean:+.2f} points {shown.holm_interval.text(2)} to `{longer.label}`, corrected over all "
        f"{len(study.methods) - 1} comparisons with it. (It takes less GPU time, see [study 1](study-1.md#confirm).) "
        "The protocol asks to compare methods with two passes with `longer` "
        "([headline claims](protocol.md#headline-claims)). So read H3 only together with this line."
    )


def beside_translation() -> str:
    """What H5 and H6 do not say themselves."""
    (h6,) = (row for row in headlines() if row[0] == "H6")
    return translation_claims.beside(h6[6])


def summary() -> str:
    """What comes first on the page: how many claims failed, and how many hold."""
    judged = {row[0]: row[-1] for row in headlines()}
    failed, earned = (
        [name for name, words in judged.items() if words.startswith(like)] for like in ("not earned", EARNED)
    )
    by_r_drop = [name for name in earned if judged[name] == EARNED_BY_R_DROP]
    ours = [name for name in earned if name not in by_r_drop]
    ours += [f"{', '.join(by_r_drop)} by R-Drop, a part of its method"] if by_r_drop else []
    of_the_paper = [row[-1] for row in comparisons.rows()]
    words = (verdicts.NOT_REPRODUCED, verdicts.NOT_RESOLVED, verdicts.NOT_MEASURED, verdicts.REPRODUCED)
    counts = ", ".join(f"{_are(of_the_paper.count(each))} {each}" for each in words)
    return (
        f"**Of {len(judged)} headline claims, {len(failed)} failed{_named(failed)}, "
        f"{_are(len(judged) - len(earned) - len(failed))} not measured or not complete, and {_are(len(earned))} earned"
        f"{_named(ours)}. "
        f"Of {len(of_the_paper)} comparisons of the paper, {counts}. {other_claims.counted(others())}**"
    )


def _are(count: int) -> str:
    """The number and its verb."""
    return f"{count} {'is' if count == 1 else 'are'}"


def _named(claims: list[str]) -> str:
    """These claims in brackets; nothing if there are none."""
    return f" ({', '.join(claims)})" if claims else ""


def r_drop_gain(study: Study) -> float | None:
    """What R-Drop gains over `none`, in the unit of the study; None if that was not measured."""
    theirs, none = study.pick(is_called("r-drop")), study.pick(is_called("none"))
    found = None if theirs is None or none is None else paired_difference(theirs.test, none.test)
    return None if found is None else found.mean * study.factor


def verdict(found: Difference, one: Headline) -> str:
    """Whether a claim is earned: the estimate reaches the figure, and the corrected interval is above zero."""
    if one.lost is not None:
        return f"not earned: {one.lost}"
    above = found.marked and found.holm_interval is not None and found.holm_interval.low > 0
    if above and one.need is not None and found.mean >= one.need:
        return EARNED
    return "not earned: " + ("below the figure" if above else "the interval includes zero or less")


# --- claims of the paper that results.csv does not decide ------------------------------------------------------------


def confirmed() -> dict[str, str | None]:
    """For each method of P12 and P13: the one that was confirmed in study 1, as in the comparisons above."""
    chosen = {name: SCARCE.pick(is_of_the_paper(name)) for name in curves.CONVERGING}
    chosen[curves.BASELINE] = SCARCE.pick(is_called(curves.BASELINE))
    return {name: None if runs is None else runs.label for name, runs in chosen.items()}


def convergence_table() -> str:
    """P12."""
    return tables.listed(curves.CONVERGENCE_HEADINGS, [each.row() for each in curves.convergence(confirmed())])


def training_loss_table() -> str:
    """P13."""
    return tables.listed(curves.TRAINING_LOSS_HEADINGS, [curves.training_loss(confirmed()).row()])


def others() -> dict[str, other_claims.Judged]:
    """Every claim of the paper that is not among the comparisons."""
    labels = confirmed()
    sooner, loss = curves.convergence(labels), curves.training_loss(labels)
    parts = ", ".join(f"`{each.name}` {curves.told(each.epochs, 1) or '-'}" for each in sooner)
    judged = {
        "P6": comparisons.translated(),
        "P10": scarce_or_noisy.judged(),
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
        "P21": more_studies.causal_models(),
    }
    return other_claims.judge([(row[0], row[-1]) for row in comparisons.rows()], judged)


def others_table() -> str:
    """All of them."""
    return tables.listed(other_claims.HEADINGS, other_claims.rows(others()))
