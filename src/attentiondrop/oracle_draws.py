"""Draws for `attentiondrop.reference` from a NumPy generator, for when no framework's own draws are to be matched."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specs import BlurSmoothing, Compose, Consistency, DropHead, GaussianNoise, HardMasking, OneOf, Spec


def sample(spec: Spec | None, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Any:
    """One call's draws for logits [B, H, N, M], as `reference.attention` takes them.

    >>> sample(HardMasking(), (1, 2, 3, 4), np.random.default_rng(0)).shape
    (1, 2, 3, 4)
    """
    batch, heads, rows, columns = shape
    if spec is None or isinstance(spec, Consistency):
        return None
    if isinstance(spec, Compose):
        return [sample(part, shape, rng) for part in spec.parts]
    if isinstance(spec, OneOf):
        return rng.random(), [sample(part, shape, rng) for part in spec.parts]
    if isinstance(spec, GaussianNoise):
        return rng.standard_normal(shape)
    if isinstance(spec, BlurSmoothing):
        return rng.random({"batch": (), "sample": (batch,), "head": (heads,)}[spec.sampling])
    if isinstance(spec, DropHead):
        return rng.random((batch, heads))
    if isinstance(spec, HardMasking) and spec.heads == "stratified":
        ranks = (batch, heads, rows, min(spec.k, columns))
        order = rng.random(ranks).argsort(axis=1).argsort(axis=1)
        return (order + rng.random((batch, 1, *ranks[2:]))) / heads
    return rng.random(shape)
