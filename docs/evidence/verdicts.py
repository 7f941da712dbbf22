"""The words for what became of a claim of the paper, as the summary counts them."""

from __future__ import annotations

from collections.abc import Sequence

REPRODUCED = "reproduced"
IN_PART = "reproduced in part"
NOT_REPRODUCED = "not reproduced"
NOT_RESOLVED = "not resolved"
NOT_MEASURED = "not measured"
NEW = "reported as a new result"
NOT_TESTABLE = "not testable here"
ALL = (REPRODUCED, IN_PART, NOT_REPRODUCED, NOT_RESOLVED, NOT_MEASURED, NEW, NOT_TESTABLE)


def together(parts: Sequence[str]) -> str:
    """The verdict of a claim that has several parts."""
    if len(set(parts)) == 1:
        return parts[0]
    if REPRODUCED in parts:
        return IN_PART
    return NOT_REPRODUCED if NOT_REPRODUCED in parts else NOT_RESOLVED
