"""Seeds derived from the seed of a run and a purpose, so that a run can resume without stored generator states."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(seed: int, *purpose: int | str) -> int:
    """A seed for one purpose. Different purposes get unrelated seeds.

    >>> derived_seed(0, "epoch", 1) != derived_seed(0, "epoch", 2)
    True
    """
    text = ":".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def own_generators() -> Iterator[None]:
    """Restore torch's global generators at the end, so that the code inside may seed them."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
