"""Regularisers that act on the logits, before the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..adaptive import Learnable
from ..errors import bad_argument, warn_once
from ..validation import integer, one_of
from .base import Rate, Spec, refuse_learning, set_probability, set_rate
from .draws import EVERY_LOGIT, Draws
from .ordered_rates import check_order


@dataclass(frozen=True)
class HardMasking(Spec):
    """Zero each of a row's `k` largest logits with probability `p`.

    `fill="zero"` is the paper's definition: a dropped key keeps the weight of a logit of 0. `fill="-inf"` takes its
    whole weight away; a row that would lose every key keeps its largest one. `heads="stratified"` spreads the drops
    over the H heads: for each row and rank, floor or ceiling of `p * H` heads, chosen at random, drop their key.

    >>> print(HardMasking(p=0.2, k=3))
    hard(p=0.2,k=3)
    """

    p: Rate = 0.1
    k: int = 5
    fill: Literal["zero", "-inf"] = "zero"
    heads: Literal["independent", "stratified"] = "independent"

    name = "hard"
    level = "logits"
    headline = ("p", "k")
    grid = [{"p": p, "k": k} for p, k in ((0.1, 5), (0.05, 3), (0.2, 5), (0.2, 10), (0.5, 5), (0.5, 10))]
    shown = ("hard(p=0.5,k=5)", "hard(p=0.5,k=5,fill=-inf)")

    def __post_init__(self) -> None:
        set_probability(self, "p")
        self._set("k", integer("k", self.k, minimum=1))
        one_of("fill", self.fill, ("zero", "-inf"))
        one_of("heads", self.heads, ("independent", "stratified"))
        if isinstance(self.p, Learnable) and (self.fill, self.heads) != ("zero", "independent"):
            raise bad_argument("p", 'a rate that is not learned, for fill="-inf" or stratified heads', str(self.p))

    @property
    def draws(self) -> Draws:
        """A uniform for each logit; with stratified heads, one for each of the `k` largest logits of a row."""
        if self.heads == "stratified":
            return Draws("stratified", EVERY_LOGIT, self.k)
        return Draws("uniform", EVERY_LOGIT)


@dataclass(frozen=True)
class BlurSmoothing(Spec):
    """Convolve each logit row with a Gaussian whose sigma is drawn from `U(sigma_min, sigma_max)`.

    `width` is the number of keys under the Gaussian, an odd one. `axes="both"` also blurs along the queries.
    With `edges="zero"`, keys that the row cannot see count as logits of 0. `edges="renormalize"` leaves them out.
    `sampling` says how often sigma is drawn: once for each call ("batch"), "sample" or "head".

    >>> print(BlurSmoothing(sigma_max=1.0, edges="renormalize"))
    blur(sigma_max=1.0,edges=renormalize)
    """

    sigma_max: Rate = 0.5
    width: int = 5
    sigma_min: Rate = 0.0
    axes: Literal["keys", "both"] = "keys"
    edges: Literal["zero", "renormalize"] = "zero"
    sampling: Literal["batch", "sample", "head"] = "batch"

    name = "blur"
    level = "logits"
    headline = ("sigma_max",)
    ordered = ("sigma_min", "sigma_max")
    grid = [{"sigma_max": s, "width": w} for s, w in ((0.5, 5), (0.3, 5), (1.0, 5), (2.0, 5), (1.0, 9), (2.0, 9))]
    shown = ("blur(sigma_min=1.0,sigma_max=1.0)",)

    def __post_init__(self) -> None:
        set_rate(self, "sigma_max")
        set_rate(self, "sigma_min")
        check_order(self, *self.ordered)
        self._set("width", integer("width", self.width, minimum=1))
        if self.width % 2 == 0:
            raise bad_argument("width", "an odd integer", self.width)
        if self.width > 9:
            warn_once(
                "width",
                f"width={self.width} is legal, but the paper reports losses above 2 points for widths over 9",
            )
        one_of("axes", self.axes, ("keys", "both"))
        one_of("edges", self.edges, ("zero", "renormalize"))
        one_of("sampling", self.sampling, ("batch", "sample", "head"))

    @property
    def mixes_rows(self) -> bool:
        """Whether it blurs along the queries, too."""
        return self.axes == "both"

    @property
    def radius(self) -> int:
        """How many neighbours on each side the kernel reaches."""
        return (self.width - 1) // 2

    @property
    def draws(self) -> Draws:
        """A uniform that says where sigma lies in its range: one per call, per sample or per head."""
        over = {"batch": (), "sample": ("batch",), "head": ("heads",)}[self.sampling]
        return Draws("uniform", over)  # type: ignore[arg-type]


@dataclass(frozen=True)
class GaussianNoise(Spec):
    """Add independent `N(0, sigma^2)` to every visible logit, the noise of the paper's PAC-Bayes section."""

    sigma: Rate = 0.1

    name = "noise"
    level = "logits"
    headline = ("sigma",)
    grid = [{"sigma": sigma} for sigma in (0.1, 0.2, 0.5, 1.0, 1.5, 2.0)]
    shown = ("noise(sigma=0.5)",)

    def __post_init__(self) -> None:
        set_rate(self, "sigma")

    @property
    def draws(self) -> Draws:
        """A standard normal for each logit."""
        return Draws("normal", EVERY_LOGIT)


@dataclass(frozen=True)
class TemperatureNoise(Spec):
    """Multiply the logits of each (sample, head) by `exp(sigma * z)`, with `z` a standard normal.

    >>> print(TemperatureNoise(sigma=0.3))
    temperature(sigma=0.3)
    """

    sigma: Rate = 0.1

    name = "temperature"
    level = "logits"
    headline = ("sigma",)
    grid = [{"sigma": sigma} for sigma in (0.1, 0.2, 0.3, 0.5, 0.75, 1.0)]
    shown = ("temperature(sigma=0.5)",)

    def __post_init__(self) -> None:
        set_rate(self, "sigma")

    @property
    def draws(self) -> Draws:
        """A standard normal for each (sample, head)."""
        return Draws("normal", ("batch", "heads"))


@dataclass(frozen=True)
class DropKey(Spec):
    """Hide each visible key from each row with probability `p`; a row never loses its last key.

    `by="element"` decides for each row by itself. `by="column"` decides once for each (sample, head, key), and hides
    that key from all rows of the head.

    >>> print(DropKey(p=0.2, by="column"))
    dropkey(p=0.2,by=column)
    """

    p: Rate = 0.1
    by: Literal["element", "column"] = "element"

    name = "dropkey"
    level = "logits"
    headline = ("p",)
    grid = [{"p": p} for p in (0.3, 0.05, 0.1, 0.2, 0.4, 0.5)]
    shown = ("dropkey(p=0.3)", "dropkey(p=0.3,by=column)")

    def __post_init__(self) -> None:
        set_probability(self, "p")
        refuse_learning(self, "p")
        one_of("by", self.by, ("element", "column"))

    @property
    def draws(self) -> Draws:
        """A uniform for each logit, or one for each key of a (sample, head)."""
        return Draws("uniform", EVERY_LOGIT if self.by == "element" else ("batch", "heads", "keys"))
