"""What to do to the attention, as data: frozen, validated, hashable descriptions that no framework needs to read.

A spec says *what* is computed (`semantics` in the documentation says how); `attentiondrop.reference`,
`attentiondrop.torch` and the other backends do the computing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from . import schedules
from .adaptive import Learnable
from .errors import bad_argument, warn_once
from .schedules import Schedule
from .validation import integer, number, one_of

#: The type of a rate: a number, or one of `attentiondrop.schedules`. (A union would have to be narrowed wherever a spec
#: that `Spec.at` has evaluated is computed with.)
Rate = Any

Level = Literal["logits", "weights", "heads", "model", "container"]

#: Short name -> class, in order of definition. The command line, the parser and the tests find specs here.
REGISTRY: dict[str, type[Spec]] = {}


@dataclass(frozen=True)
class Spec:
    """Base of all descriptions. Subclasses are frozen dataclasses registered under a short name."""

    #: The name in texts and dictionaries.
    name: ClassVar[str] = ""
    #: Where in the attention the spec acts.
    level: ClassVar[Level]
    #: Fields that `str` always shows; the others appear only when they differ from their default.
    headline: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            REGISTRY[cls.name] = cls

    def __str__(self) -> str:
        shown = [
            f"{field.name}={_text(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if field.name in self.headline or getattr(self, field.name) != field.default
        ]
        return f"{self.name}({','.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types that `attentiondrop.from_dict` turns back into an equal spec."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {key: value.to_dict() if isinstance(value, Schedule) else value for key, value in values.items()}
        return {"name": self.name} | plain

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Spec:
        """The same spec with its schedules evaluated, for one of several attached layers.

        >>> HardMasking(p=schedules.Linear(0.0, 0.2)).at(0.5)
        HardMasking(p=0.1, k=5, fill='zero', heads='independent')
        """
        progress = schedules.check_progress(progress)
        found = {name: value.at(progress, layer, layers) for name, value in self.scheduled().items()}
        return dataclasses.replace(self, **found) if found else self

    def scheduled(self) -> dict[str, Schedule]:
        """The fields that are schedules; a `PerHead` of numbers is one, too."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Schedule)}

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside, in order; a plain spec is its own only leaf."""
        yield self

    def _set(self, field: str, value: Any) -> None:
        """Store a normalised value during construction of a frozen instance."""
        object.__setattr__(self, field, value)


@dataclass(frozen=True)
class HardMasking(Spec):
    """Zero each of a row's `k` largest logits with probability `p`.

    `fill="zero"` is the paper's definition: a dropped key keeps the weight of a logit of 0. `fill="-inf"` takes its
    whole weight away; a row that would lose every key keeps its largest one. `heads="stratified"` spreads the drops: of
    the heads, the floor or the ceiling of `p * H` drop their key of a given row and rank, whichever heads they are.

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

    def __post_init__(self) -> None:
        _set_probability(self, "p")
        self._set("k", integer("k", self.k, minimum=1))
        one_of("fill", self.fill, ("zero", "-inf"))
        one_of("heads", self.heads, ("independent", "stratified"))
        if isinstance(self.p, Learnable) and (self.fill, self.heads) != ("zero", "independent"):
            raise bad_argument("p", 'a rate that is not learned, for fill="-inf" or stratified heads', str(self.p))


@dataclass(frozen=True)
class BlurSmoothing(Spec):
    """Convolve each logit row with a Gaussian whose sigma is drawn from `U(sigma_min, sigma_max)`.

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

    def __post_init__(self) -> None:
        _set_rate(self, "sigma_max")
        _set_rate(self, "sigma_min")
        # Schedules are compared when they are evaluated.
        if not self.scheduled() and self.sigma_min > self.sigma_max:
            raise bad_argument("sigma_min", f"at most sigma_max={self.sigma_max}", self.sigma_min)
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
    def radius(self) -> int:
        """How many neighbours on each side the kernel reaches."""
        return (self.width - 1) // 2


@dataclass(frozen=True)
class GaussianNoise(Spec):
    """Add independent `N(0, sigma^2)` to every visible logit: what the paper's PAC-Bayes section analyses."""

    sigma: Rate = 0.1

    name = "noise"
    level = "logits"
    headline = ("sigma",)

    def __post_init__(self) -> None:
        _set_rate(self, "sigma")


@dataclass(frozen=True)
class DropKey(Spec):
    """Hide each visible key from each row with probability `p`; a row never loses its last key."""

    p: Rate = 0.1

    name = "dropkey"
    level = "logits"
    headline = ("p",)

    def __post_init__(self) -> None:
        _set_probability(self, "p")
        _refuse_learning(self, "p")


@dataclass(frozen=True)
class DropHead(Spec):
    """Zero each (sample, head) output with probability `p`, scale the kept heads; at least one is kept."""

    p: Rate = 0.1

    name = "drophead"
    level = "heads"
    headline = ("p",)

    def __post_init__(self) -> None:
        _set_probability(self, "p")
        _refuse_learning(self, "p")


@dataclass(frozen=True)
class AttentionDropout(Spec):
    """Ordinary dropout of the attention weights, after the softmax, scaled by `1 / (1 - p)`."""

    p: Rate = 0.1

    name = "attndropout"
    level = "weights"
    headline = ("p",)

    def __post_init__(self) -> None:
        _set_probability(self, "p")


@dataclass(frozen=True)
class Consistency(Spec):
    """A KL loss between `views` independently perturbed passes: acts on model outputs, not on one attention."""

    weight: Rate = 0.5
    views: int = 2
    direction: Literal["forward", "reverse", "symmetric"] = "forward"
    task: Literal["first", "mean"] = "first"

    name = "consistency"
    level = "model"
    headline = ("weight",)

    def __post_init__(self) -> None:
        _set_rate(self, "weight")
        _refuse_learning(self, "weight")
        self._set("views", integer("views", self.views, minimum=2))
        one_of("direction", self.direction, ("forward", "reverse", "symmetric"))
        one_of("task", self.task, ("first", "mean"))


def r_drop(weight: float = 1.0, views: int = 2) -> Consistency:
    """The consistency loss of R-Drop: symmetric KL, and the task loss averaged over the views.

    R-Drop attaches nothing: the model's own dropout makes the views differ. `weight` is the alpha of its code.

    >>> print(r_drop())
    consistency(weight=1.0,direction=symmetric,task=mean)
    """
    return Consistency(weight=weight, views=views, direction="symmetric", task="mean")


@dataclass(frozen=True)
class Compose(Spec):
    """Several specs in order on the same attention; nested `Compose` are flattened.

    >>> both = Compose([BlurSmoothing(sigma_max=0.5), Consistency(weight=0.2)])
    >>> print(both)
    blur(sigma_max=0.5)+consistency(weight=0.2)
    >>> both.consistency
    Consistency(weight=0.2, views=2, direction='forward', task='first')
    """

    parts: tuple[Spec, ...]

    name = "compose"
    level = "container"

    def __init__(self, parts: Sequence[Spec]) -> None:
        flat: list[Spec] = []
        for part in _specs("parts", parts):
            flat.extend(part.parts if isinstance(part, Compose) else [part])
        if sum(isinstance(part, Consistency) for part in flat) > 1:
            raise bad_argument("parts", "at most one consistency(...)", " + ".join(map(str, flat)))
        self._set("parts", tuple(flat))

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return f"compose({self.parts[0]})"
        return "+".join(map(str, self.parts))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the parts as a list of such."""
        return {"name": self.name, "parts": [part.to_dict() for part in self.parts]}

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Spec:
        """The same with the schedules of all parts evaluated."""
        return Compose([part.at(progress, layer, layers) for part in self.parts])

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside all parts, in order."""
        for part in self.parts:
            yield from part.leaves()

    @property
    def consistency(self) -> Consistency | None:
        """The consistency loss that goes with the perturbations, if one was named."""
        return next((part for part in self.parts if isinstance(part, Consistency)), None)


@dataclass(frozen=True)
class OneOf(Spec):
    """One of several specs, drawn anew in every call, with the given probabilities (equal ones by default).

    >>> print(OneOf([HardMasking(), BlurSmoothing()], weights=[1, 3]))
    oneof(hard(p=0.1,k=5),blur(sigma_max=0.5),weights=[0.25,0.75])
    """

    parts: tuple[Spec, ...]
    weights: tuple[float, ...]

    name = "oneof"
    level = "container"

    def __init__(self, parts: Sequence[Spec], weights: Sequence[float] | None = None) -> None:
        choices = _specs("parts", parts)
        for choice in choices:
            if any(isinstance(leaf, Consistency) for leaf in choice.leaves()):
                raise bad_argument("parts", "no consistency(...) inside oneof(...)", str(choice))
        if weights is None:
            weights = [1.0] * len(choices)
        given: Any = weights
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(choices):
            raise bad_argument("weights", f"{len(choices)} numbers, one for each spec", given)
        values = [number("weights", weight, minimum=0.0) for weight in given]
        if not sum(values) > 0:
            raise bad_argument("weights", "at least one positive number", weights)
        self._set("parts", choices)
        # Normalising what is normalised already must change nothing, or texts would not round-trip.
        total = math.fsum(values)
        normal = values if math.isclose(total, 1.0, rel_tol=1e-12) else [value / total for value in values]
        self._set("weights", tuple(normal))

    def __str__(self) -> str:
        parts = ",".join(map(str, self.parts))
        equal = self == OneOf(self.parts)
        return f"oneof({parts})" if equal else f"oneof({parts},weights={_text(self.weights)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the parts as a list of such."""
        return {
            "name": self.name,
            "parts": [part.to_dict() for part in self.parts],
            "weights": list(self.weights),
        }

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Spec:
        """The same with the schedules of all parts evaluated."""
        return OneOf([part.at(progress, layer, layers) for part in self.parts], self.weights)

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside all parts, in order."""
        for part in self.parts:
            yield from part.leaves()


def _set_rate(spec: Spec, field: str, maximum: float = math.inf) -> float:
    """Check a number, or all values of a schedule; returns the largest."""
    value = getattr(spec, field)
    if isinstance(value, Schedule):
        return max(number(field, extreme, 0.0, maximum) for extreme in value.extremes())
    spec._set(field, number(field, value, 0.0, maximum))
    return float(getattr(spec, field))


def _set_probability(spec: Spec, field: str) -> None:
    largest = _set_rate(spec, field, 1.0)
    if largest > 0.5:
        warn_once(
            field,
            f"{field}={largest:g} is legal, but the paper reports losses above 2 points for rates over 0.5",
        )


def _refuse_learning(spec: Spec, field: str) -> None:
    """There is no relaxation of a decision that hides a key or a head."""
    if isinstance(getattr(spec, field), Learnable):
        raise bad_argument(field, f"a rate that is not learned, in {spec.name}(...)", str(getattr(spec, field)))


def _specs(name: str, parts: Any) -> tuple[Spec, ...]:
    if isinstance(parts, (str, Spec)) or not isinstance(parts, Sequence) or len(parts) == 0:
        raise bad_argument(name, "a non-empty list of specs", parts)
    for part in parts:
        if not isinstance(part, Spec):
            raise bad_argument(name, "a list of specs", part)
    return tuple(parts)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value) if isinstance(value, str | Schedule) else repr(value)
