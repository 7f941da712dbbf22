"""The settings that tuning and ablations try: points of the grid of a method."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ArgumentError, AttentionDropError, bad_argument
from ...specs import REGISTRY
from ..files.typed_settings import unknown
from . import COMPARATORS
from .parse import NONE, check_part, read_method, terms


def built_in_grids() -> dict[str, Any]:
    """Method -> its settings, or field -> values for all their combinations, as each method defines them."""
    found: dict[str, Any] = {name: comparator.grid for name, comparator in COMPARATORS.items()}
    found |= {name: spec.grid for name, spec in REGISTRY.items()}
    return {name: grid for name, grid in found.items() if grid}


def candidates(text: str, trials: int, seed: int, grids: Mapping[str, Any] | None = None) -> list[str]:
    """At most `trials` settings of the method `text`: the defaults, then random points of its grid.

    Fields that `text` gives are not varied. A grid with fewer points is tried whole. With `trials` 0 only the defaults.

    >>> candidates("dropout", trials=2, seed=0)
    ['dropout(p=0.1)', 'dropout(p=0.05)']
    >>> candidates("hard(p=0.5,k=5,fill=-inf)", trials=9, seed=0)
    ['hard(p=0.5,k=5,fill=-inf)']
    """
    default = read_method(text).text
    if trials == 0 or default == NONE:
        return [default]
    points = [method for method in dict.fromkeys(_settings(text, grids or {})) if method != default]
    random.Random(seed).shuffle(points)
    return [default, *points][:trials]


def grid_methods(text: str, axes: Mapping[tuple[int, str], list[Any]]) -> list[str]:
    """The methods of a grid, in the order of `itertools.product`. A key is (index of a part of the method, field)."""
    found = []
    for values in itertools.product(*axes.values()):
        chosen: dict[int, dict[str, Any]] = {}
        for (part, field), value in zip(axes, values, strict=True):
            chosen.setdefault(part, {})[field] = value
        parts = [term.having(**chosen.get(index, {})) for index, term in enumerate(terms(text))]
        found.append(read_method("+".join(parts)).text)
    return found


def check_grids(grids: Mapping[str, Any], where: str) -> None:
    """Refuse a grid that is not method -> field -> list of values, or has values that the method does not accept."""
    for name, fields in grids.items():
        if isinstance(fields, list) and all(isinstance(one, Mapping) for one in fields):
            for one in fields:
                check_part(terms(name)[0].having(**one))
            continue
        if not isinstance(fields, Mapping) or not all(isinstance(one, list) and one for one in fields.values()):
            raise bad_argument(f"{where}.{name}", "a mapping from fields to lists of values", fields)
        for field, values in fields.items():
            for value in values:
                try:
                    check_part(terms(name)[0].having(**{field: value}))
                except AttentionDropError as error:
                    raise ArgumentError(f"{where}.{name}.{field}: {error}") from None


def _settings(text: str, grids: Mapping[str, Any]) -> Iterator[str]:
    """The method at all combinations of the settings of its parts."""
    known, parts = built_in_grids() | dict(grids), terms(text)
    for term in parts:
        if term.name not in known:
            raise unknown(f"method {text!r} cannot be tuned: {term.name}", term.name, known, "grid")
    for chosen in itertools.product(*(_listed(known[term.name]) for term in parts)):
        varied = (
            {key: value for key, value in one.items() if key not in term.given}
            for term, one in zip(parts, chosen, strict=True)
        )
        yield read_method("+".join(term.having(**fields) for term, fields in zip(parts, varied, strict=True))).text


def _listed(grid: Any) -> list[Mapping[str, Any]]:
    if not isinstance(grid, Mapping):
        return list(grid)
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
