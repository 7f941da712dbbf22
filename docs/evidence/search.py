"""The page of the search for a combination that wins, on images: a ranking on validation data, and what it says."""

from __future__ import annotations

from pathlib import Path

import ablations
import studies
from ranking import Ranking

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


def ranking() -> Ranking:
    """What was published."""
    return Ranking(ablations.read(FOLDER), "accuracy, %", "points")


def bullets() -> str:
    """Which combination won, and what parts and settings changed."""
    found = ranking()
    best = found.winner()
    if sorted(split_terms(best)) != sorted(split_terms(studies.SEARCHED)):
        raise SystemExit(f"{FOLDER}: the best is {best}, and {studies.SEARCHED} was confirmed: write the pages anew")
    near = [one for one in found.ranked()[1:] if found.change(best, one).includes_zero]
    lines = [
        f"- **The best mean belongs to `{best}`**: {found.mean(best):.1f} %, {found.change(best)} points to `none`.",
        f"- {len(near)} other combinations cannot be told from it: the interval of the difference includes zero.",
    ]
    lines += [f"- {words}: {found.change(method, other)} points." for method, (other, words) in CHANGED.items()]
    return "\n".join(line[:2] + line[2].upper() + line[3:] for line in lines)
