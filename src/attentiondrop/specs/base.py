"""The base class of all specs: frozen, validated, hashable descriptions that need no framework."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .. import schedules
from ..adaptive import Learnable
from ..errors import bad_argument, warn_once
from ..schedules import Schedule
from ..validation import number
from .draws import Draws

if TYPE_CHECKING:
    from .consistency import Consistency

#: The type of a rate: a number, or one of `attentiondrop.schedules`. It is `Any` because after `Spec.at` all rates are
#: numbers, which a type checker cannot know.
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
    #: Two rates of which the first must not exceed the second, also where they change; empty if there are none.
    ordered: ClassVar[tuple[str, ...]] = ()
    #: What tuning tries: six settings (field -> value), the published one first. Empty if the spec is not tuned.
    grid: ClassVar[Sequence[Mapping[str, Any]]] = ()
    #: Texts of specs that show the effect well in a picture (`attentiondrop show`).
    shown: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            REGISTRY[cls.name] = cls

    def __str__(self) -> str:
        shown = [
            f"{field.name}={text_of(getattr(self, field.name))}"
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

        >>> import attentiondrop as ad
        >>> ad.HardMasking(p=ad.schedules.Linear(0.0, 0.2)).at(0.5)
        HardMasking(p=0.1, k=5, fill='zero', heads='independent')
        """
        progress = schedules.check_progress(progress)
        found = {name: value.at(progress, layer, layers) for name, value in self.scheduled().items()}
        return dataclasses.replace(self, **found) if found else self

    def scheduled(self) -> dict[str, Schedule]:
        """The fields that are schedules; a `PerHead` of numbers counts as one."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Schedule)}

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside, in order; a plain spec is its own only leaf."""
        yield self

    @property
    def consistency(self) -> Consistency | None:
        """The `Consistency` in this spec, which `consistency_loss` computes; None if there is none."""
        return None

    @property
    def draws(self) -> Draws:
        """What this regulariser draws in one call of an attention."""
        raise bad_argument("spec", "a regulariser of the attention", str(self))

    @property
    def mixes_rows(self) -> bool:
        """Whether the result of a row depends on the logits of other rows."""
        return False

    def _set(self, field: str, value: Any) -> None:
        """Store a normalised value during construction of a frozen instance."""
        object.__setattr__(self, field, value)


def set_rate(spec: Spec, field: str, maximum: float = math.inf) -> float:
    """Check a number, or all values of a schedule; return the largest."""
    value = getattr(spec, field)
    if isinstance(value, Schedule):
        return max(number(field, extreme, 0.0, maximum) for extreme in value.extremes())
    spec._set(field, number(field, value, 0.0, maximum))
    return float(getattr(spec, field))


def set_probability(spec: Spec, field: str) -> None:
    """Check a probability, or all values of a schedule; warn where the paper reports losses."""
    largest = set_rate(spec, field, 1.0)
    if largest > 0.5:
        warn_once(
            field,
            f"{field}={largest:g} is legal, but the paper reports losses above 2 points for rates over 0.5",
        )


def refuse_learning(spec: Spec, field: str) -> None:
    """Refuse a learned rate: a decision that hides a key or a head has no relaxation to learn it through."""
    if isinstance(getattr(spec, field), Learnable):
        raise bad_argument(field, f"a rate that is not learned, in {spec.name}(...)", str(getattr(spec, field)))


def text_of(value: Any) -> str:
    """The text of a field's value inside the text of a spec."""
    if isinstance(value, tuple):
        return "[" + ",".join(map(text_of, value)) + "]"
    return str(value) if isinstance(value, str | Schedule) else repr(value)
