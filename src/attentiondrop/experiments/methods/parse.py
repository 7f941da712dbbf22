"""Read the text of a method. All code that reads methods uses this module.

A method is `none`, comparators (`dropout`, `dropconnect`, `r-drop`, ...), attention specs that
`attentiondrop.parse` reads, or any of them joined with `+`. `groups` knows names for several methods at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ...errors import ArgumentError, ParseError, did_you_mean
from ...parsing import parse, read_call, split_terms
from ...specs import REGISTRY, Compose, Consistency, Spec
from . import COMPARATORS, Comparator
from .folder_names import older_slugs, slug

NONE = "none"
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Method:
    """One way to regularise: comparators, and a spec to attach to the attention.

    >>> read_method("hard+dropout").text
    'dropout(p=0.1)+hard(p=0.1,k=5)'
    """

    comparators: tuple[Comparator, ...] = ()
    spec: Spec | None = None

    def __post_init__(self) -> None:
        losses = self._losses()
        if len(losses) > 1:
            raise ArgumentError(f"method {self.text!r}: expected at most one consistency loss, found {len(losses)}")
        if losses and not self.comparators and self.attached is None:
            raise ArgumentError(
                f"method {self.text!r}: a consistency loss alone compares equal passes, "
                "join it with something that perturbs, such as blur+consistency"
            )
        rates = [rate for part in self.comparators for rate in part.model_rates()]
        if len(rates) != len(set(rates)):
            raise ArgumentError(f"method {self.text!r}: the same rate of the model is set twice")
        rebuilt = [part.name for part in self.comparators if type(part).build is not Comparator.build]
        if len(rebuilt) > 1:
            raise ArgumentError(f"method {self.text!r}: expected at most one of {' and '.join(rebuilt)}")

    @property
    def text(self) -> str:
        """The canonical text. Equal methods have equal texts, and `read_method` can read it."""
        parts = [self._own_text, "" if self.spec is None else str(self.spec)]
        return "+".join(part for part in parts if part) or NONE

    @property
    def _own_text(self) -> str:
        return "+".join(str(part) for part in self.comparators)

    @property
    def slug(self) -> str:
        """The text as a folder name."""
        return slug(self.text)

    def older_slugs(self) -> Iterator[str]:
        """The folder names that older versions may have given it."""
        return older_slugs(self._own_text, self.text)

    @property
    def trains_as(self) -> tuple[object, ...]:
        """What two methods that train alike have in common: it does not matter where `consistency` stands."""
        return self.comparators, self.attached, self.consistency

    @cached_property
    def consistency(self) -> Consistency | None:
        """The consistency loss to train with, if any."""
        return next(iter(self._losses()), None)

    @cached_property
    def attached(self) -> Spec | None:
        """What is attached to the attention: the specs of comparators, and the spec without its consistency."""
        return joined(spec for spec, _ in self.attached_parts)

    @cached_property
    def attached_parts(self) -> list[tuple[Spec, float]]:
        """The parts of `attached`, each with the share of the attention, counted from its end, that it acts on."""
        leaves = () if self.spec is None else self.spec.parts if isinstance(self.spec, Compose) else (self.spec,)
        kept = [(part.attached, part.attached_share) for part in self.comparators]
        kept += [(leaf, 1.0) for leaf in leaves if not isinstance(leaf, Consistency)]
        return [(spec, share) for spec, share in kept if spec is not None]

    @property
    def has_tail_and_others(self) -> bool:
        """Whether its parts act on different shares of the attention."""
        return len({share for _, share in self.attached_parts}) > 1

    @property
    def label_smoothing(self) -> float | None:
        """The label smoothing of the method, which replaces that of the recipe; None if it has none."""
        return next((part.label_smoothing for part in self.comparators if part.label_smoothing is not None), None)

    def smoothing(self, of_recipe: float) -> float:
        """The label smoothing to train with, given that of the recipe."""
        return of_recipe if self.label_smoothing is None else self.label_smoothing

    def training(self, settings: Settings) -> Settings:
        """The settings of training (a dataclass) with what comparators change in them."""
        self.check_replaced()
        changes = {key: value for part in self.comparators for key, value in part.training(settings).items()}
        changed: Settings = dataclasses.replace(settings, **changes)  # type: ignore[type-var]
        for part in self.comparators:
            part.check_training(changed)
        return changed

    def check_replaced(self) -> None:
        """Refuse two parts that replace the same setting: only one would count. (Older records have such methods.)"""
        replaced = [(setting, part.name) for part in self.comparators for setting in part.replaces]
        for setting in dict(replaced):
            if len(both := [name for each, name in replaced if each == setting]) > 1:
                raise ArgumentError(
                    f"method {self.text!r}: expected at most one of {' and '.join(both)}, since each replaces "
                    f"training.{setting}"
                )

    def counts_from(self, epochs: int) -> int:
        """The first epoch, counted from zero, whose weights may be chosen as the best."""
        return max((part.counts_from(epochs) for part in self.comparators), default=0)

    def model_rates(self) -> dict[str, float]:
        """Rates to build the model with."""
        return {key: rate for part in self.comparators for key, rate in part.model_rates().items()}

    def _losses(self) -> list[Consistency]:
        of_spec = None if self.spec is None else self.spec.consistency
        found = [*(part.consistency for part in self.comparators), of_spec]
        return [loss for loss in found if loss is not None]


def joined(specs: Iterable[Spec]) -> Spec | None:
    """One spec that does what all of them do; None for none."""
    found = list(specs)
    return Compose(found) if len(found) > 1 else next(iter(found), None)


def read_methods(texts: Iterable[str]) -> list[Method]:
    """The methods of a comparison, in order. The same method twice is an error."""
    methods: list[Method] = []
    for text in texts:
        method = read_method(text)
        method.check_replaced()
        for other in methods:
            if method.trains_as == other.trains_as:
                raise ArgumentError(f"method {text!r} is given twice: it means {other.text}")
        methods.append(method)
    if not methods:
        raise ArgumentError(f"expected at least one method: {_choices()}")
    return methods


def read_method(text: str) -> Method:
    """The method that `text` describes. The error for an unknown name suggests the closest one."""
    parts = split_terms(text)
    names = [_name(part, text) for part in parts]
    if NONE in names:
        if len(parts) > 1:
            raise ParseError(f"method {text!r}: 'none' cannot be joined with another method")
        plain = _comparator(parts[0], text)
        return Method() if plain == COMPARATORS[NONE]() else Method((plain,))
    own = [_comparator(part, text) for part, name in zip(parts, names, strict=True) if name in COMPARATORS]
    kinds = [type(part) for part in own]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ParseError(f"method {text!r}: {kind.name} is given twice")
    specs = [part for part, name in zip(parts, names, strict=True) if name in REGISTRY]
    order = list(COMPARATORS)
    return Method(
        tuple(sorted(own, key=lambda part: order.index(part.name))), parse("+".join(specs)) if specs else None
    )


def canonical_part(text: str) -> str:
    """The text of a single part with all fields. One that no method could contain is refused."""
    return str(_comparator(text, text) if _name(text, text) in COMPARATORS else parse(text))


@dataclass(frozen=True)
class Term:
    """One part of a method as the user wrote it, with only the fields that the user gave."""

    name: str
    given: dict[str, Any]
    #: The text as it was written. A container such as `oneof` has only this, since its arguments are not fields.
    text: str

    def having(self, **fields: Any) -> str:
        """The text with these fields added or replaced."""
        if not fields:
            return self.text
        return f"{self.name}({','.join(f'{field}={value}' for field, value in (self.given | fields).items())})"


def terms(text: str) -> list[Term]:
    """The parts of a method as the user wrote them."""
    found = []
    for part in split_terms(text):
        name = _name(part, text)
        container = name in REGISTRY and REGISTRY[name].level == "container"
        found.append(Term(name, {} if container else read_call(part)[1], part))
    return found


def _name(part: str, text: str) -> str:
    if part.count("(") != part.count(")"):
        raise ParseError(f"method {text!r}: brackets do not match; in a YAML list, quote a method that has commas")
    if re.match(r"[\w-]+(\(.*\))?\s+[A-Za-z]", part):
        raise ParseError(f"method {text!r}: expected one method; give each as a word of its own, or join them with '+'")
    name = re.split(r"[\s(]", part, maxsplit=1)[0]
    if name not in COMPARATORS and name not in REGISTRY:
        close = difflib.get_close_matches(name, [*COMPARATORS, *REGISTRY], n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ParseError(f"unknown method {name!r} in {text!r}: {hint}`attentiondrop methods` lists all")
    return name


def _comparator(part: str, text: str) -> Comparator:
    name, fields = read_call(part)
    try:
        return COMPARATORS[name](**fields)
    except TypeError:
        known = [field.name for field in dataclasses.fields(COMPARATORS[name])]
        wrong = next((field for field in fields if field not in known), None)
        found = f"has the fields {', '.join(known)}, found {part!r}{did_you_mean(wrong, known)}"
        raise ParseError(f"method {text!r}: {name} {found}") from None
    except ArgumentError as error:
        raise ParseError(f"method {text!r}: {error}") from None


def _choices() -> str:
    specs = [name for name, cls in REGISTRY.items() if not issubclass(cls, Compose)]
    return f"{', '.join(COMPARATORS)}, or a spec ({', '.join(specs)}), joined with '+'"
