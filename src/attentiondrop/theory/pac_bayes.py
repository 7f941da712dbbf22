"""PAC-Bayes bounds: from the empirical risk of a randomised predictor to a bound on its true risk.

All three hold with probability at least 1 - delta over n i.i.d. examples, for a loss in [0, 1], a prior that does not
depend on these examples, and all posteriors at the same time.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..validation import integer, number, one_of
from .binary_kl import kl_inverse
from .binomial import open_unit
from .divergences import Divergence
from .rounding import SLACK, next_above, short_above

KINDS = ("seeger", "mcallester", "paper")

_PAPER_DENOMINATOR = (
    "Theorem 1 of the paper divides by 2n - 1 where 2n is enough (Maurer): true, and a little looser than "
    'kind="mcallester", though the proof printed there is not one (docs/theory.md)'
)


@dataclass(frozen=True)
class Bound:
    """A bound on the risk, and whether it is valid."""

    #: The result of the formula; NaN where the paper's formula takes the root of a negative number.
    value: float
    #: Whether it is a bound. If not, `notes` say why.
    valid: bool
    kind: str
    empirical_risk: float
    kl: float
    n: int
    delta: float
    notes: tuple[str, ...] = ()

    @property
    def vacuous(self) -> bool:
        """Whether the bound says nothing: it is not valid, or 1 or more, which holds for every loss in [0, 1]."""
        return not self.valid or not self.value < 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; None for what is not a finite number."""
        plain = asdict(self) | {"vacuous": self.vacuous, "notes": list(self.notes)}
        return {
            key: None if isinstance(item, float) and not math.isfinite(item) else item for key, item in plain.items()
        }

    def __str__(self) -> str:
        if not self.valid:
            return f"no bound ({self.kind} gives {self.value:.4g}): " + "; ".join(self.notes)
        word = "vacuous" if self.vacuous else "risk"
        chance = f"with probability {1 - self.delta:.12g}"
        return f"{word} <= {short_above(self.value)} {chance} ({self.kind}, KL {self.kl:.4g})"


def pac_bayes_bound(
    empirical_risk: float, kl: float | Divergence, n: int, delta: float = 0.05, kind: str = "seeger"
) -> Bound:
    """Bound the risk of a randomised predictor.

    Args:
        empirical_risk: its expected loss on the n examples, in [0, 1].
        kl: KL(posterior || prior) in nats, possibly infinite; or a `Divergence`, such as `paper_kl` returns. If that
            is not valid, the bound is not valid either.
        n: how many i.i.d. examples.
        delta: with probability at most delta the bound is wrong.
        kind: `"seeger"`: kl(empirical || risk) <= (KL + ln(2 sqrt(n) / delta)) / n, inverted exactly (Langford and
            Seeger; the constant is Maurer's), the tightest here. `"mcallester"`: the same relaxed by Pinsker's
            inequality, empirical + sqrt((KL + ln(2 sqrt(n) / delta)) / (2 n)). `"paper"`: like "mcallester", with
            2 n - 1, as in the paper's Theorem 1. It accepts a negative `kl`, as the paper does, and says that the
            result is no bound.

    Example:
        >>> bound = pac_bayes_bound(0.05, kl=10.0, n=1000)
        >>> round(bound.value, 4), bound.valid, bound.vacuous
        (0.1008, True, False)
        >>> from attentiondrop.theory import paper_kl
        >>> bound = pac_bayes_bound(0.05, paper_kl(0.5, heads=4, tokens=17), n=1000, kind="paper")
        >>> bound.value, bound.valid
        (nan, False)
    """
    one_of("kind", kind, KINDS)
    risk = number("empirical_risk", empirical_risk, 0.0, 1.0)
    n, delta = integer("n", n, 1), open_unit("delta", delta)
    if isinstance(kl, Divergence):
        divergence = replace(kl, value=_checked_kl(kl.value, "paper"))
    else:
        divergence = Divergence(_checked_kl(kl, kind))
    valid, notes = divergence.valid, list(divergence.notes)
    if kind == "paper":
        notes.append(_PAPER_DENOMINATOR)
    if valid and divergence.value < 0:
        valid = False
        notes.insert(0, "a KL divergence is never negative, so this number is none")
    complexity = divergence.value + math.log(2.0 * math.sqrt(n) / delta)
    if complexity < 0:
        value = math.nan
        notes.append("the root of a negative number")
    elif kind == "seeger":
        value = kl_inverse(risk, complexity / n)
    else:
        value = next_above(risk + math.sqrt(SLACK * complexity / (2 * n if kind == "mcallester" else 2 * n - 1)))
    return Bound(value, valid, kind, risk, divergence.value, n, delta, tuple(notes))


def _checked_kl(kl: Any, kind: str) -> float:
    if kl == math.inf:
        return math.inf
    return number("kl", kl, -math.inf if kind == "paper" else 0.0)
