"""The settings that tuning and ablations try.

A method lists its settings, the published default first. Tuning takes the first `tuning.points` of them, so that every
method gets as many. A method of several parts takes combinations of their settings.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ArgumentError, AttentionDropError, bad_argument, without_advice
from ...specs import REGISTRY
from ..files.typed_settings import unknown
from . import COMPARATORS
from .comparator import Grid
from .parse import Term, canonical_part, read_method, terms
from .variants import VARIANTS

#: How many settings each method lists.
POINTS = 6


def built_in_grids() -> dict[str, Grid]:
    """Method -> its grid, as each method defines it."""
    found: dict[str, Grid] = {name: comparator.grid for name, comparator in COMPARATORS.items()}
    found |= {name: spec.grid for name, spec in REGISTRY.items()}
    return {name: grid for name, grid in found.items() if grid}


def settings_of(grid: Grid) -> list[dict[str, Any]]:
    """The settings of a grid: those that it lists, or all combinations of its values.

    >>> settings_of({"p": [0.1, 0.2], "k": [3]})
    [{'p': 0.1, 'k': 3}, {'p': 0.2, 'k': 3}]
    """
    if isinstance(grid, Mapping):
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [dict(one) for one in grid]


def candidates(
    text: str,
    trials: int,
    seed: int,
    grids: Mapping[str, Any] | None = None,
    points: int = POINTS,
    draw: bool = False,
) -> list[str]:
    """The first `trials` of the `points` settings of the method `text`, in the order of its grid.

    A list of settings begins with the published default. Of values for each field, the default comes first. Fields that
    `text` gives are not varied, so such a method may have fewer settings. (A grid may be for a part with fields, such
    as "hard(fill=-inf)": then it is for this part alone, and says what is varied.) Of a method of several parts, the
    settings after the first are drawn with `seed` from all combinations; with `draw`, those of every method. With
    `trials` 0 there is only the default.

    >>> candidates("dropout", trials=2, seed=0)
    ['dropout(p=0.1)', 'dropout(p=0.05)']
    >>> candidates("dropout", trials=2, seed=0, draw=True)
    ['dropout(p=0.1)', 'dropout(p=0.3)']
    >>> candidates("dropout(p=0.4)", trials=2, seed=0)
    ['dropout(p=0.4)']
    """
    default = read_method(text).text
    if trials == 0:
        return [default]
    known = built_in_grids() | dict(grids or {})
    parts = terms(text)
    for term in parts:
        if term.name not in known:
            raise unknown(f"method {text!r} cannot be tuned: {term.name}", term.name, known, "grid")
    own = _own_settings(parts, VARIANTS | dict(grids or {}))
    varied = [own.get(term.name) or _varied(term, known[term.name]) for term in parts]
    combined = [read_method("+".join(texts)).text for texts in itertools.product(*varied)]
    first, *rest = dict.fromkeys(combined)
    if draw or sum(len(texts) > 1 for texts in varied) > 1:
        random.Random(seed).shuffle(rest)
    fixed = any(term.name not in own and _is_fixed(term, known[term.name]) for term in parts)
    if len(rest) + 1 < points and not fixed:
        raise ArgumentError(
            f"method {text!r} lists {len(rest) + 1} settings: expected {points}, as tuning.points says, so that every "
            "method gets as many; lower tuning.points, or add to its tuning.grids"
        )
    return [first, *rest][: min(trials, points)]


def grid_methods(text: str, axes: Mapping[tuple[int, str], list[Any]]) -> list[str]:
    """The methods of a grid, in the order of `itertools.product`. A key is (index of a part of the method, field)."""
    found: list[str] = []
    for values in itertools.product(*axes.values()):
        chosen: dict[int, dict[str, Any]] = {}
        for (part, field), value in zip(axes, values, strict=True):
            chosen.setdefault(part, {})[field] = value
        parts = [term.having(**chosen.get(index, {})) for index, term in enumerate(terms(text))]
        method = read_method("+".join(parts)).text
        if method in found:
            varied = " ".join(f"{field}={','.join(map(str, each))}" for (_, field), each in axes.items())
            raise ArgumentError(
                f"grid of {text}: expected different settings, received {varied}: {method} is there twice"
            )
        found.append(method)
    return found


def check_grids(grids: Mapping[str, Any], where: str) -> None:
    """Refuse a grid that is not method -> field -> list of values, or has values that the method does not accept."""
    for name, grid in grids.items():
        check_grid(grid, name, f"{where}.{name}")


def check_tuning_grids(grids: Mapping[str, Any], where: str) -> None:
    """As `check_grids`. A grid is for one part of a method: one for several parts would never be used."""
    check_grids(grids, where)
    for name in grids:
        if len(terms(name)) > 1:
            expected = "one part of a method, such as hard (joined parts take combinations of their grids)"
            raise bad_argument(where, expected, name)


def check_grid(grid: Any, name: str, where: str) -> None:
    """Refuse a grid of the method `name` that is neither field -> values nor a list of settings, or is not accepted."""
    listed = isinstance(grid, Sequence) and not isinstance(grid, str) and grid and all(map(_is_mapping, grid))
    if not listed and not (_is_mapping(grid) and all(isinstance(one, list) and one for one in grid.values())):
        raise bad_argument(where, "a mapping from fields to lists of values, or a list of settings", grid)
    # Of combinations, each value alone: a field at fault is named then.
    each = grid if listed else [{field: value} for field, values in grid.items() for value in values]
    for setting in each:
        try:
            with without_advice():
                canonical_part(terms(name)[0].having(**setting))
        except AttentionDropError as error:
            raise ArgumentError(f"{where}.{', '.join(setting)}: {error}") from None


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _own_settings(parts: Sequence[Term], grids: Mapping[str, Grid]) -> dict[str, list[str]]:
    """Name -> texts, for parts that have a grid of their own, with the same fields: others that are given are fixed."""
    listed = {_key(each): grid for text, grid in grids.items() if _known(text) and (each := terms(text)[0]).given}
    found = {}
    for term in parts:
        if grid := listed.get(_key(term)):
            found[term.name] = list(dict.fromkeys(term.having(**setting) for setting in _from_the_default(grid)))
    return found


def _key(term: Term) -> tuple[str, frozenset[str]]:
    """What a part means, and which of its fields were given."""
    return canonical_part(term.text), frozenset(term.given)


def _known(text: str) -> bool:
    return text.partition("(")[0] in (*REGISTRY, *COMPARATORS)


def _from_the_default(grid: Grid) -> list[dict[str, Any]]:
    """The settings of a grid. A list begins with its default; before values for each field, the default comes."""
    settings = settings_of(grid)
    return [{}, *settings] if isinstance(grid, Mapping) else settings


def _varied(term: Term, grid: Grid) -> list[str]:
    """The texts of one part of a method over its settings, without those fields that the user gave."""
    settings = _from_the_default(grid)
    texts = [term.having(**{key: value for key, value in one.items() if key not in term.given}) for one in settings]
    return list(dict.fromkeys(texts)) or [term.text]


def _is_fixed(term: Term, grid: Grid) -> bool:
    """Whether the user gave a field that the grid varies."""
    return any(field in term.given for setting in settings_of(grid) for field in setting)
