"""What transformers calls attention implementations: ours, and those that a site can stand in for."""

from __future__ import annotations

#: Without "/" or "flash" in it: transformers would look for a kernel to load.
NAME = "attentiondrop"

#: Implementations whose masks say everything that the attention function must know.
REACHABLE = ("sdpa", "eager", NAME)


def no_mask(implementation: str | None) -> str:
    """Why the others are out of reach."""
    return f"attn_implementation={implementation!r} passes no full mask"
