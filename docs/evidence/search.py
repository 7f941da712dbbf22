"""The page of the search for a combination that wins: a ranking on validation data, and what it says.

Three seeds are few. So intervals use one deviation for all combinations, as on the page of the ablations.
"""

from __future__ import annotations

from pathlib import Path

import ablations
import claims
from ablations import NONE, Ablations, Change

from attentiondrop.parsing import split_terms

FOLDER = Path(__file__).parent / "results" / "cifar10-search"
#: Combination -> the same without one of its parts or settings, and what that part or setting is.
CHANGED = {
    "consistency(weight=3.0)+blur(sigma_max=2.0)": (
        "consistency(weight=1.0)+blur(sigma_max=2.0)",
        "weight 3 instead of 1",
    ),
    "consistency(weight=5.0)+blur(sigma_max=4.0)": (
        "consistency(weight=1.0)+blur(sigma_max=4.0)",
        "weight 5 instead of 1, with twice the sigma",
    ),
    "dropout(p=0.1)+consistency(weight=3.0)+blur(sigma_max=2.0)": (
        "consistency(weight=3.0)+blur(sigma_max=2.0)",
        "dropout of hidden states beside it",
    ),
    "consistency(weight=3.0)+dropkey(p=0.3,by=column)+blur(sigma_max=2.0)": (
        "consistency(weight=3.0)+blur(sigma_max=2.0)",
        "dropped columns beside it",
    ),
    "consistency(weight=3.0)+hard(p=0.5,k=5,fill=-inf)+blur(sigma_max=2.0)": (
        "consistency(weight=3.0)+blur(sigma_max=2.0)",
        "masking beside it, in both views",
    ),
    "tailblur(share=0.5,sigma_max=2.0,weight=3.0)": (
        "consistency(weight=3.0)+blur(sigma_max=2.0)",
        "blur and a second pass in the last half of the layers alone",
    ),
}


def winner(found: Ablations) -> str:
    """The combination with the best mean over its seeds: the protocol's rule."""
    return ranked(found)[0]


def ranked(found: Ablations) -> list[str]:
    """All combinations, the best first."""
    return sorted(found.scores, key=lambda method: mean(found, method), reverse=True)


def mean(found: Ablations, method: str) -> float:
    """The mean validation accuracy of a combination, in percent."""
    scores = found.scores[method].values()
    return sum(scores) / len(scores)


def change(found: Ablations, method: str, other: str = NONE) -> Change:
    """The difference of two combinations."""
    one = found.change([method], other)
    if one is None:
        raise SystemExit(f"{FOLDER}: expected runs of {method} and {other} with the same seeds")
    return one


def bullets() -> str:
    """Which combination won, and what parts and settings changed."""
    found = ablations.read(FOLDER)
    best = winner(found)
    if sorted(split_terms(best)) != sorted(split_terms(claims.SEARCHED)):
        raise SystemExit(f"{FOLDER}: the best is {best}, and {claims.SEARCHED} was confirmed: write the pages anew")
    near = [one for one in ranked(found)[1:] if change(found, best, one).includes_zero]
    lines = [
        f"- **The best mean belongs to `{best}`**: {mean(found, best):.1f} %, {change(found, best)} points to `none`.",
        f"- {len(near)} other combinations cannot be told from it: the interval of the difference includes zero.",
    ]
    lines += [f"- {words}: {change(found, method, other)} points." for method, (other, words) in CHANGED.items()]
    return "\n".join(line[:2] + line[2].upper() + line[3:] for line in lines)


def table() -> str:
    """All combinations, the best first."""
    found = ablations.read(FOLDER)
    best = winner(found)
    lines = [
        "| combination | seeds | validation accuracy, % | to `none`, points | to the first, points |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for method in ranked(found):
        to_none = "" if method == NONE else str(change(found, method))
        to_best = "" if method == best else str(change(found, method, best))
        scores = found.scores[method]
        lines.append(f"| `{method}` | {len(scores)} | {mean(found, method):.2f} | {to_none} | {to_best} |")
    return "\n".join(lines)


def state() -> str:
    """How many runs there are, and how exact they are."""
    found = ablations.read(FOLDER)
    done = sum(map(len, found.scores.values()))
    return (
        f"{done} of {found.planned} runs. A run deviates by {found.deviation[0]:.1f} points from the mean of its "
        "combination and of its seed."
    )
