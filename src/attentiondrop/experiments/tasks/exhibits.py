"""What a report shows of a model beside its scores: texts side by side, and maps of its attention. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Examples:
    """A table of texts, such as sentences with their translations."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one head, [queries, keys]: without the method, and with it as in training.

    `after` is None if the method does not act on attention.
    """

    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    before: tuple[tuple[float, ...], ...]
    after: tuple[tuple[float, ...], ...] | None = None
    #: The kind of the attention, as `attach` knows it; None if it has none.
    kind: str | None = None


@dataclass(frozen=True)
class Exhibits:
    """All of it, for one run."""

    examples: tuple[Examples, ...] = ()
    maps: tuple[AttentionMap, ...] = ()

    def acting_on(self, kinds: Sequence[str] | None) -> Exhibits:
        """The same for a method that acts on attention of these kinds only: other maps have no `after`."""
        if kinds is None:
            return self
        maps = [each if each.kind in (None, *kinds) else replace(each, after=None) for each in self.maps]
        return replace(self, maps=tuple(maps))
