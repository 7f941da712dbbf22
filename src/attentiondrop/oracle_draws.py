"""Draws for `attentiondrop.reference` from a NumPy generator, for when no framework's own draws are to be matched."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specs import Compose, Consistency, OneOf, Spec


def sample(spec: Spec | None, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Any:
    """One call's draws for logits [B, H, N, M], as `reference.attention` takes them.

    >>> import attentiondrop as ad
    >>> sample(ad.HardMasking(), (1, 2, 3, 4), np.random.default_rng(0)).shape
    (1, 2, 3, 4)
    """
    if spec is None or isinstance(spec, Consistency):
        return None
    if isinstance(spec, Compose):
        return [sample(part, shape, rng) for part in spec.parts]
    if isinstance(spec, OneOf):
        return rng.random(), [sample(part, shape, rng) for part in spec.parts]
    wanted = spec.draws.shape(*shape)
    if spec.draws.distribution == "normal":
        return rng.standard_normal(wanted)
    if spec.draws.distribution == "uniform":
        return rng.random(wanted)
    # Stratified: over the heads, one uniform lies in each H-th part of [0, 1).
    batch, heads, *rest = wanted
    order = rng.random(wanted).argsort(axis=1).argsort(axis=1)
    return (order + rng.random((batch, 1, *rest))) / heads
