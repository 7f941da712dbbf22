"""Names of attention implementations in transformers: ours, and those that a site can replace."""

from __future__ import annotations

#: It must not contain "/" or "flash", or transformers would try to load a kernel.
NAME = "attentiondrop"

#: Implementations for which transformers passes a full mask.
REACHABLE = ("sdpa", "eager", NAME)


def no_mask(implementation: str | None) -> str:
    """The reason why another implementation cannot be replaced."""
    return f"attn_implementation={implementation!r} passes no full mask"
