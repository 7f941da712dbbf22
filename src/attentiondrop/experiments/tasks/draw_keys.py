"""Seeds for draws that are independent of each other and of torch's global generator."""

from __future__ import annotations

import hashlib


def key(*parts: int | str) -> int:
    """A seed for the draw that `parts` name, such as `key("order", seed, epoch)`. Different parts give different seeds.

    >>> key("order", 0, 1) == key("order", 0, 1), key("order", 0, 1) == key("order", 1, 0)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
