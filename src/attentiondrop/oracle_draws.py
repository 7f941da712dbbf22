"""Random draws for `attentiondrop.reference` from a NumPy generator, where the draws of no framework are needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specs import Compose, Consistency, OneOf, Spec


def sample(spec: Spec | None, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Any:
    """The draws of one call for logits [B, H, N, M], in the form that `reference.attention` takes.

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
    # Stratified: [0, 1) has H equal parts, and each part holds the uniform of one head.
    batch, heads, *rest = wanted
    order = rng.random(wanted).argsort(axis=1).argsort(axis=1)
    return (order + rng.random((batch, 1, *rest))) / heads
