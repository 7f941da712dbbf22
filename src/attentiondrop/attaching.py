"""What `attach` has in common in all frameworks: name patterns for attention sites, and the report of what was found.

A site is one attention module of a model, with the spec that it applies in training.
"""

from __future__ import annotations

import abc
import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from .errors import AttachError, bad_argument, warn_outside
from .parsing import parse
from .schedules import Schedule
from .specs import Consistency, Spec
from .specs.consistency import first_consistency

Choice = Spec | str | None
Patterns = Mapping[str, Choice]


class Unreached(NamedTuple):
    """An attention module that `attach` saw and left alone."""

    name: str
    cls: str
    reason: str


class AttachedSite(Protocol):
    """What a report needs to know of a site."""

    name: str

    @property
    def spec(self) -> Spec:
        """What the site does in training."""


class BaseAttachment(abc.ABC):
    """What `attach` did to a model, and the handle to change or undo it. As a context manager, it undoes it on exit."""

    model: Any
    unreached: tuple[Unreached, ...] = ()
    #: How much of the training is done, in [0, 1].
    progress: float = 0.0

    @abc.abstractmethod
    def rows(self) -> Sequence[tuple[AttachedSite, str]]:
        """The attached sites, each with the name of its module's class."""

    @abc.abstractmethod
    def assign(self, site: Any, spec: Spec) -> None:
        """Give one site another spec."""

    def note(self, site: Any) -> str:
        """What the list of sites says of one."""
        return str(site.spec)

    @abc.abstractmethod
    def remove(self) -> None:
        """Give every module its own class back. A second call does nothing."""

    @property
    def consistency(self) -> Consistency | None:
        """The `Consistency` in the attached specs, which `consistency_loss` uses; None if there is none."""
        found = first_consistency(site.spec for site, _ in self.rows())
        return found and found.at(self.progress)  # type: ignore[return-value]

    def update(self, spec: Choice | Patterns) -> None:
        """Give the sites other specs; every site must still get one. A compiled model uses the new specs, too.

        A pattern that matches none of the sites is an error, as in `attach`, unless it says None.
        """
        patterns = read_patterns(spec)
        if not self.rows():
            raise AttachError("update: expected an attachment that is in place; this one was removed")
        # A pattern that says None may be there for a module that `attach` left alone.
        asking = [pattern for pattern, drop in patterns.items() if drop is not None]
        check_patterns([site.name for site, _ in self.rows()], asking)
        chosen = [(site, choose(site.name, patterns)) for site, _ in self.rows()]
        left = [site.name for site, new in chosen if new is None]
        if left:
            raise AttachError(f"spec: expected one for every attached site, received none for {', '.join(left)}")
        check_schedules([new for _, new in chosen if new is not None], self.progress)
        for site, new in chosen:
            if new is not None:
                self.assign(site, new)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()

    def __str__(self) -> str:
        rows = self.rows()
        lines = [f"AttentionDrop on {type(self.model).__name__}: {len(rows)} attention {_plural('site', len(rows))}"]
        lines += grouped([(site.name, cls, self.note(site)) for site, cls in rows])
        if self.unreached:
            lines.append(f"not reached: {len(self.unreached)}")
            lines += grouped(self.unreached)
        return "\n".join(lines)

    __repr__ = __str__


def read_patterns(spec: Choice | Patterns) -> dict[str, Spec | None]:
    """Turn the argument `spec` of `attach` (one spec for all sites, or a mapping) into checked specs by pattern."""
    mapping: Mapping[Any, Any] = spec if isinstance(spec, Mapping) else {"*": spec}
    if not isinstance(spec, Mapping) and spec is None:
        raise bad_argument("spec", "a spec, its text, or a mapping from name patterns to them", spec)
    patterns: dict[str, Spec | None] = {}
    for pattern, choice in mapping.items():
        drop = parse(choice) if isinstance(choice, str) else choice
        if not isinstance(pattern, str) or not (drop is None or isinstance(drop, Spec)):
            raise bad_argument("spec", "a spec, its text, or a mapping from name patterns to them", spec)
        if drop is not None:
            check_perturbs("spec", drop)
        patterns[pattern] = drop
    if not patterns:
        raise bad_argument("spec", "at least one pattern", spec)
    return patterns


def check_perturbs(name: str, drop: Spec) -> None:
    """Refuse a consistency loss alone: it perturbs no attention."""
    if all(isinstance(leaf, Consistency) for leaf in drop.leaves()):
        raise bad_argument(name, "a perturbation to go with consistency(...)", str(drop))


def choose(name: str, patterns: Mapping[str, Spec | None]) -> Spec | None:
    """The spec of the first pattern that matches `name`; None if no pattern matches or if it says None."""
    return next((drop for pattern, drop in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)


def check_patterns(names: Sequence[str], patterns: Iterable[str]) -> None:
    """Raise if a pattern matches no site: it is probably misspelt."""
    for pattern in patterns:
        if not _matches(names, pattern):
            raise AttachError(f"spec: pattern {pattern!r} matches no attention site; there is {_listed(names)}")


def _matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def chosen_sites(
    names: Sequence[str], patterns: Mapping[str, Spec | None], others: Collection[str] = ()
) -> list[tuple[int, Spec]]:
    """(index in `names`, spec) of every site that gets a spec; a pattern that matches no site is an error.

    A pattern that says None may match one of `others` instead: modules without a site, which stay as they are anyway.
    """
    left_alone = [pattern for pattern, drop in patterns.items() if drop is None and _matches(others, pattern)]
    check_patterns(names, [pattern for pattern in patterns if pattern not in left_alone])
    chosen = [(place, drop) for place, name in enumerate(names) if (drop := choose(name, patterns)) is not None]
    if not chosen:
        raise AttachError(f"spec: no site is left to attach to; there is {_listed(names)}")
    return chosen


def check_schedules(specs: Sequence[Spec], progress: float = 0.0) -> None:
    """Evaluate all schedules now, so that values that do not fit raise here and not in the middle of a run.

    `progress` is where the run is now.
    """
    for layer, spec in enumerate(specs):
        check_over_training(spec, layer, len(specs), progress)


def check_over_training(spec: Spec, layer: int = 0, layers: int = 1, progress: float = 0.0) -> None:
    """Evaluate the schedules of one spec, so that values that do not fit raise now.

    A spec knows the extremes of each of its rates. Two rates that must keep an order are compared at many places.
    """
    for place in (0.0, progress, 1.0):
        spec.at(place, layer, layers)
    for leaf in spec.leaves():
        if leaf.ordered and getattr(leaf, leaf.ordered[0]) != 0.0:
            for place in _telling_places(leaf.scheduled().values()):
                leaf.at(place, layer, layers)


#: With more bends than that, curves between them are hardly curved.
_MANY = 64


def _telling_places(schedules: Iterable[Schedule]) -> Iterator[float]:
    """Where one schedule may cross another one: straight lines differ most where one of them bends or ends."""
    bends = sorted({0.0, 0.25, 0.5, 0.75, 1.0}.union(*(schedule.corners() for schedule in schedules)))
    yield from bends
    if len(bends) <= _MANY:
        for begin, end in pairwise(bends):
            yield from (begin + (end - begin) * quarter / 4 for quarter in (1, 2, 3))


def warn_of_unreached(model: Any, unreached: Sequence[Unreached]) -> None:
    """Warn about modules that stay unchanged. The warning points at the caller of `attach`, or at the training step."""
    if unreached:
        lines = "\n".join(grouped(unreached))
        warn_outside(
            f"{len(unreached)} attention {_plural('module', len(unreached))} of {type(model).__name__} could not be "
            f"reached and will not be regularised:\n{lines}",
            "torch",
        )


def nothing_reached(model: Any, unreached: Sequence[Unreached], otherwise: str) -> AttachError:
    """The error for a model without any site. `otherwise` ends the message if no attention module was seen at all."""
    message = f"found no attention in {type(model).__name__} that can be regularised"
    if not unreached:
        return AttachError(f"{message}: {otherwise}")
    return AttachError("\n".join([f"{message}; seen, but out of reach:", *grouped(unreached)]))


def grouped(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Text lines for rows (name, class, note); rows that differ only in the numbers in their names share a line.

    Where all numbers from 0 on share it, a star stands for them.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cls, note in rows:
        groups.setdefault((_NUMBER.sub("*", name), cls, note), []).append(name or "(the model itself)")
    patterns = [pattern for pattern, *_ in groups]
    cells = [
        (names[0], cls, note)
        if len(names) == 1
        else (_shared_name(pattern, names, patterns.count(pattern) == 1), f"{len(names)} x {cls}", note)
        for (pattern, cls, note), names in groups.items()
    ]
    widths = [max((len(cell[column]) for cell in cells), default=0) for column in (0, 1)]
    return [f"  {name:<{widths[0]}}  {cls:<{widths[1]}}  {note}" for name, cls, note in cells]


_NUMBER = re.compile(r"\d+")


def _shared_name(pattern: str, names: Sequence[str], alone: bool) -> str:
    """`pattern`, with numbers in place of its stars if others have the pattern, too, or if numbers are missing.

    >>> _shared_name("blocks.*.attn", ["blocks.1.attn", "blocks.2.attn", "blocks.5.attn"], alone=True)
    'blocks.1-2,5.attn'
    """
    columns = [sorted(set(column)) for column in zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True)]
    if alone and all(column == list(range(len(column))) for column in columns):
        return pattern
    ranges = iter([_ranges(column) for column in columns])
    return re.sub(r"\*", lambda found: next(ranges), pattern)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in rising order, in few words: `0-5,8`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found)


def _listed(names: Sequence[str]) -> str:
    shown = [name or "the model itself" for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
