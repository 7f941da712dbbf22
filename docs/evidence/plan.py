"""The tables of protocol.md that are computed: GPU time of each study, and the power of each headline claim.

GPU seconds of a study = sum over its runs of passes x examples x epochs / throughput + seconds around a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.groups import expanded
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.methods.passes import passes


@dataclass(frozen=True)
class Planned:
    """A study: its recipe, and what was measured or assumed about its speed."""

    title: str
    recipe: str
    size: str
    #: Training examples of an epoch, and how many of them `none`, captured, trains on in a second, on an H200.
    examples: int
    throughput: float
    #: GPU seconds of a run that are not training steps: capture, validation, test.
    around: float = 1.0
    #: Methods that are not in the recipe yet, because a study before chooses them: how many, and passes of each.
    chosen: tuple[int, float] = (0, 2.0)
    #: Points of an ablation, in place of the methods of a comparison: how many, and their mean passes.
    points: tuple[int, float] | None = None


#: Measured: 87,000 images/s for 6 layers of 192 at batch 256, 3 heads; CIFAR-100 and Multi30k En-De (captured steps).
#: Others are scaled by multiplications or, for text, assumed: they are replaced by measured ones before a study begins.
STUDIES = (
    Planned("1a check", "evidence/cifar10-20pct", "check", 9_000, 80_000),
    Planned("1b screen", "evidence/cifar10-20pct", "screen", 9_000, 80_000),
    Planned("1c confirm", "evidence/cifar10-20pct", "confirm", 9_000, 80_000, chosen=(3, 1.75)),
    Planned("2 CIFAR-100", "evidence/cifar100", "study", 45_000, 78_000),
    Planned("3 Multi30k En-De", "evidence/multi30k-en-de", "study", 29_000, 140_000, around=4.0),
    Planned("6 ablations", "evidence/cifar10-ablations", "short", 9_000, 80_000, points=(60, 1.5)),
    Planned("4a tinyshakespeare", "evidence/tinyshakespeare", "study", 3_921, 9_000, around=2.0),
    Planned("1d 40 % noise", "evidence/cifar10-20pct", "noise", 9_000, 80_000),
    Planned("1e 10 %", "evidence/cifar10-20pct", "tenth", 5_000, 80_000),
    Planned("1f 50 %", "evidence/cifar10-half", "study", 22_500, 80_000),
    Planned("5 transfer", "evidence/transfer", "study", 5_000, 65_000),
    Planned("2b CIFAR-10 full", "evidence/cifar10-full", "study", 45_000, 78_000),
    Planned("4b WikiText-2", "evidence/wikitext2", "study", 16_000, 10_000, around=2.0),
    Planned("3b Multi30k De-En", "evidence/multi30k-de-en", "study", 29_000, 140_000, around=4.0),
    Planned("1g search", "evidence/cifar10-search", "search", 7_000, 80_000, points=(20, 1.9)),
    Planned("3c search", "evidence/multi30k-search", "search", 29_000, 140_000, around=4.0, points=(14, 1.9)),
    Planned("2 check", "evidence/cifar100", "check", 45_000, 78_000),
    Planned("5 pretrained", "evidence/cifar100", "pretrained", 45_000, 78_000),
    Planned("1h search, wrong labels", "evidence/cifar10-noise-search", "search", 9_000, 80_000, points=(7, 1.9)),
    Planned("1i wrong labels again", "evidence/cifar10-20pct", "noise-again", 9_000, 80_000),
    Planned("1j long", "evidence/cifar10-20pct", "long", 9_000, 80_000),
)


def budget_table() -> str:
    """One row for each study, with the running sum."""
    lines = [
        "| study | recipe | size | methods | trials | seeds | run of `none`, s | GPU minutes | sum |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    total = 0.0
    for study in STUDIES:
        recipe = read_recipe(study.recipe, study.size)
        second = study.examples / study.throughput
        run = recipe.training.epochs * second
        if study.points is not None:
            methods, trials = study.points[0], 0
            seconds = recipe.seeds * methods * (study.points[1] * run + study.around)
        else:
            texts = expanded(recipe.methods)
            units = [passes(read_method(text)) for text in texts] + [study.chosen[1]] * study.chosen[0]
            methods, trials = len(units), recipe.tuning.trials
            short = (recipe.tuning.epochs or recipe.training.epochs) * second
            seconds = recipe.seeds * sum(unit * run + study.around for unit in units)
            seconds += trials * sum(unit * short + study.around for unit in units)
        total += seconds
        name = study.recipe.removeprefix("evidence/")
        lines.append(
            f"| {study.title} | `{name}` | `{study.size}` | {methods} | {trials or '-'} | {recipe.seeds} | {run:.0f} | "
            f"{seconds / 60:.0f} | {total / 60:.0f} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Claim:
    """A headline claim: the figure to reach, with so many paired seeds of an assumed standard deviation."""

    name: str
    words: str
    figure: float
    seeds: int
    deviation: float
    unit: str = "points"
    #: The seeds that are run first. If the estimate is not above half of the figure then, the claim has failed.
    first: int | None = None


CLAIMS = (
    Claim("H1", "CIFAR-100: over `none` with the same GPU time", 1.0, 10, 0.45, first=5),
    Claim(
        "H2", "CIFAR-100: over the better of `none` and tuned R-Drop, at most R-Drop's GPU time", 0.5, 10, 0.45, first=5
    ),
    Claim("H3", "CIFAR-10, 20 %: over the best of dropout, DropKey, R-Drop", 1.5, 10, 0.9),
    Claim("H4", "CIFAR-10, 20 %, 40 % wrong labels: over the best of the same", 3.0, 10, 1.5),
    Claim("H5", "Multi30k En-De: over tuned dropout", 0.8, 10, 0.45, "BLEU"),
    Claim("H6", "Multi30k En-De: over tuned R-Drop", 0.3, 10, 0.45, "BLEU"),
    Claim(
        "H7",
        "CIFAR-100: R-Drop's gain over `none` (assumed: 1.0) at two thirds of its GPU time",
        1.0,
        10,
        0.45,
        first=5,
    ),
    Claim("H8", "H4 again with other seeds: what the search chose, over R-Drop with heavier weights", 3.0, 10, 1.0),
)


def power(effect: float, deviation: float, seeds: int, alpha: float) -> float:
    """The probability that a two-sided paired t test rejects, in the right direction."""
    from scipy import stats

    noncentral = effect * math.sqrt(seeds) / deviation
    limit = stats.t.ppf(1 - alpha / 2, seeds - 1)
    return float(stats.nct.sf(limit, seeds - 1, noncentral))


def earned(effect: float, figure: float, deviation: float, seeds: int, alpha: float) -> float:
    """The probability that the estimate reaches the figure and the test rejects."""
    from scipy import special

    limit = special.stdtrit(seeds - 1, 1 - alpha / 2)
    error, freedom = deviation / math.sqrt(seeds), seeds - 1
    # Over all sample deviations, as shares of the true one: the middle of 2,000 equally likely parts of chi-squared.
    shares = np.sqrt(special.chdtri(freedom, 1 - (np.arange(2000) + 0.5) / 2000) / freedom)
    need = np.maximum(figure, limit * shares * error)
    return float(special.ndtr((effect - need) / error).mean())


def needed(claim: Claim, alpha: float, chance: float = 0.8) -> float:
    """The true effect at which the claim is earned with this chance."""
    from scipy import optimize

    def lack(effect: float) -> float:
        return earned(effect, claim.figure, claim.deviation, claim.seeds, alpha) - chance

    return float(optimize.brentq(lack, 0.0, claim.figure + 10 * claim.deviation))


def power_table() -> str:
    """One row for each headline claim, at the strictest step of Holm's correction over all of them."""
    alpha = 0.05 / len(CLAIMS)
    lines = [
        f"| claim | what | figure | seeds | assumed sd | power at the figure, alpha 0.05 / {len(CLAIMS)} | "
        "earned if the truth is the figure | true effect for 80 % |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for claim in CLAIMS:
        at = power(claim.figure, claim.deviation, claim.seeds, alpha)
        chance = earned(claim.figure, claim.figure, claim.deviation, claim.seeds, alpha)
        lines.append(
            f"| {claim.name} | {claim.words} | +{claim.figure:g} {claim.unit} | {claim.seeds} | {claim.deviation:g} | "
            f"{100 * at:.0f} % | {100 * chance:.0f} % | +{needed(claim, alpha):.2f} |"
        )
    return "\n".join(lines)
