"""All methods with what is known about them, for lists: the command line, the docs, the benchmark of their cost."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...specs import REGISTRY
from ...specs.base import text_of
from ..files.typed_settings import unknown
from . import COMPARATORS
from .described_specs import SPECS
from .grids import POINTS, candidates
from .groups import ALL, groups
from .parse import read_method, terms


@dataclass(frozen=True)
class Listed:
    """One method as lists show it."""

    #: As it is written in a group, such as `dropkey(by=column)`.
    name: str
    #: With its main fields and their defaults.
    text: str
    #: All fields of its parts, with their defaults and choices.
    fields: list[str]
    groups: list[str]
    summary: str
    perturbs: str
    formula: str
    reference: str
    #: Whether the model in evaluation is the same as without it.
    training_only: bool
    #: What tuning tries, the default first.
    settings: list[str]
    #: Why a step with it cannot be captured; empty if it can.
    not_captured: str


def catalogue(names: Iterable[str] = ()) -> list[Listed]:
    """The methods of all groups, or those of `names`: groups, methods in a group, or parts of other methods.

    >>> [one.name for one in catalogue(["data", "dropout"])]
    ['dropout', 'mixup', 'cutmix', 'manifoldmixup']
    """
    known = groups()
    every = [*known[ALL], *(name for name, part in COMPARATORS.items() if part.group is None)]
    wanted: set[str] = set()
    for name in names:
        if name not in known and name not in every:
            choices = dict.fromkeys([*known, *every])
            raise unknown(f"method {name!r}", name, choices, "method or group", "attentiondrop methods")
        wanted |= set(known.get(name, [name]))
    return [_listed(text) for text in every if text in (wanted or known[ALL])]


def _listed(text: str) -> Listed:
    names = [term.name for term in terms(text)]
    parts = [described(name) for name in names]
    comparators = [COMPARATORS[name] for name in names if name in COMPARATORS]
    return Listed(
        name=text,
        text=read_method(text).text if names != ["none"] else str(COMPARATORS["none"]()),
        fields=[fields_of(name) for name in names],
        groups=[group for group, members in groups().items() if text in members and group != ALL],
        summary=" ".join(_summary(name) for name in names),
        perturbs=", ".join(part[0] for part in parts),
        formula="; ".join(part[1] for part in parts),
        reference="; ".join(dict.fromkeys(one for part in parts for one in part[2].split("; "))),
        training_only=all(comparator.training_only for comparator in comparators),
        settings=candidates(text, POINTS, seed=1000, points=POINTS if text in groups()[ALL] else 1),
        not_captured="; ".join(one.not_captured for one in comparators if one.not_captured),
    )


def parts_of(text: str) -> list[str]:
    """The names of the comparators and specs of a method, of what a choice or a chain holds too.

    >>> parts_of("dropout+hard+consistency"), parts_of("none")
    (['dropout', 'hard', 'consistency'], ['none'])
    """
    method, names = read_method(text), {spec: name for name, spec in REGISTRY.items()}
    leaves = () if method.spec is None else method.spec.leaves()
    return [part.name for part in method.comparators] + [names[type(leaf)] for leaf in leaves] or ["none"]


def fields_of(name: str) -> str:
    """The fields of one part, with their defaults, and with their choices if they have any.

    >>> fields_of("hard")
    'hard: p=0.1, k=5, fill=zero (or -inf), heads=independent (or stratified)'
    """
    owner: Any = COMPARATORS.get(name) or REGISTRY[name]
    found = []
    for field in dataclasses.fields(owner):
        default = text_of(None if field.default is dataclasses.MISSING else field.default)
        choices = re.findall(r"[\"']([^\"']+)[\"']", str(field.type)) if "Literal" in str(field.type) else []
        others = " or ".join(choice for choice in choices if choice != default)
        found.append(f"{field.name}={default}" + (f" (or {others})" if others else ""))
    return f"{name}: {', '.join(found) or 'no fields'}"


def described(name: str) -> tuple[str, str, str]:
    """What the part of a method with this name perturbs, what it computes in one line, and who published it."""
    if name in COMPARATORS:
        one = COMPARATORS[name]
        return one.perturbs, one.formula, one.reference
    return SPECS[name]


def _summary(name: str) -> str:
    owner = COMPARATORS.get(name) or REGISTRY[name]
    return (owner.__doc__ or "").strip().splitlines()[0]
