"""The error for data files that are not where `data.root` says."""

from __future__ import annotations

from ...errors import ArgumentError


def missing(expected: str, root: str | None, advice: str) -> ArgumentError:
    """The error, with what to do about it."""
    return ArgumentError(f"data.root: expected {expected}, received {root!r}; {advice}")


def how_to_name(place: str) -> str:
    """What to do where no file is named: `place` is "FILE" or "FOLDER". Runs do not store paths."""
    return f"set it with --set data.root={place} (for a finished run, with --root {place})"
