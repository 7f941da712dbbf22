"""The list of all rows of the benchmarks, and the choice of some by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ..errors import bad_argument
from .flex import FlexHardRow, FlexRow
from .rows import BACKENDS, SPECS, ListingRow, OursRow, Row, SdpaRow


def all_rows() -> list[Row]:
    """The whole table."""
    names = (None, *BACKENDS)
    return [
        *(SdpaRow(backend) for backend in names),
        *(SdpaRow(backend, dropout=0.1) for backend in names),
        FlexRow(),
        FlexHardRow(),
        ListingRow("hard masking"),
        ListingRow("blur"),
        *map(OursRow, SPECS),
    ]


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name that patterns are matched with."""


NamedT = TypeVar("NamedT", bound=Named)


def select(rows: Sequence[NamedT], patterns: Sequence[str] | None) -> list[NamedT]:
    """The rows whose names match one of the shell patterns, in the order of the table; all rows without patterns."""
    if not patterns:
        return list(rows)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(row.name, pattern) for row in rows):
            names = ", ".join(row.name for row in rows)
            raise bad_argument("rows", f"shell patterns that match some of: {names}", pattern)
    return [row for row in rows if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]
