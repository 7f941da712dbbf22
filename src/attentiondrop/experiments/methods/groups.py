"""Names for several methods at once, such as `attention` or `all`, for the command line and recipes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ...errors import ParseError
from ...specs import REGISTRY
from . import COMPARATORS, variants
from .parse import NONE, read_method

#: Our own regularisers, with both fills, schedules, an adaptive rate, and their consistency.
OURS = (
    "hard",
    "blur",
    "noise",
    *variants.OURS,
    "hard+consistency",
    "hard(fill=-inf)+consistency",
    "blur+consistency",
    "noise+consistency",
)
#: Two passes without their consistency: twice the draws, and nothing else. The task loss is that of both.
WITHOUT_CONSISTENCY = (
    *variants.CONTROLS,
    "hard+consistency(weight=0.0,task=mean)",
    "blur+consistency(weight=0.0,task=mean)",
)
ALL = "all"


def groups() -> dict[str, tuple[str, ...]]:
    """Group -> its methods, as texts.

    >>> groups()["data"]
    ('mixup', 'cutmix', 'manifoldmixup')
    """
    found: dict[str, tuple[str, ...]] = {"attention": _attention(), "ours": OURS}
    for name, comparator in COMPARATORS.items():
        if comparator.group is not None:
            found[comparator.group] = (*found.get(comparator.group, ()), name)
    controls = found["controls"]
    found["controls"] = (NONE, *(name for name in controls if name != NONE), *WITHOUT_CONSISTENCY)
    order = ("controls", "ours", "attention", "hidden", "weights", "data", "loss", "structure")
    each = dict.fromkeys(text for name in order for text in found[name])
    return {name: found[name] for name in order} | {ALL: tuple(each)}


def expanded(texts: Iterable[str]) -> list[str]:
    """The methods that `texts` name, groups replaced by their methods. A method that a group repeats is left out.

    The first method of a comparison is its baseline. So if a group comes first, `none` goes before it.

    >>> expanded(["data", "hard"])
    ['none', 'mixup', 'cutmix', 'manifoldmixup', 'hard']
    """
    known, given = groups(), [text.strip() for text in texts]
    for text in given:
        _check_spelling(text, known)
    if not set(given) & set(known):
        return given
    if given[0] in known:
        given = [NONE, *(text for text in given if text != NONE)]
    seen = {_canonical(text) for text in given if text not in known}
    found: list[str] = []
    for text in given:
        if text not in known:
            found.append(text)
            continue
        for member in known[text]:
            if (name := _canonical(member)) not in seen:
                found.append(member)
                seen.add(name)
    return found


def _check_spelling(text: str, groups: Iterable[str]) -> None:
    """Refuse the misspelt name of a group. Names of methods are checked when they are read."""
    names = [*groups, *COMPARATORS, *REGISTRY]
    if text not in names and (close := difflib.get_close_matches(text, names, n=1)) and close[0] in groups:
        raise ParseError(f"unknown group {text!r}: did you mean {close[0]!r}? There are {', '.join(groups)}")


def _canonical(text: str) -> str:
    return read_method(text).text


def _attention() -> tuple[str, ...]:
    """Every spec that acts on one attention, but ours, in order of definition, each followed by its variants."""
    found: list[str] = []
    for name, spec in REGISTRY.items():
        if spec.level in ("logits", "weights", "heads") and name not in ("hard", "blur"):
            found += [name, *(text for text in variants.ATTENTION if text.partition("(")[0] == name)]
    return tuple(found)
