"""Seeds for the parts of a run, from its seed and what they are for: a run resumes without stored generators."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(seed: int, *purpose: int | str) -> int:
    """A seed for one purpose; different purposes have unrelated seeds.

    >>> derived_seed(0, "epoch", 1) != derived_seed(0, "epoch", 2)
    True
    """
    text = ":".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def own_generators() -> Iterator[None]:
    """Within, torch's global generators may be seeded; afterwards they are as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
