"""A blur as our operators take it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...specs import BlurSmoothing
from ..call.leaves import Active, LogitShape
from ..eager.table import blur_sigma


class BlurArguments(NamedTuple):
    """A blur as our operators take it: they draw sigma themselves, on the device, and multiply it by the gate."""

    gate: Tensor | None
    rest: tuple[int, str, float, float, int, bool]


def suits_operators(leaf: Active) -> bool:
    """Whether our operators can blur by this leaf: not where heads or samples have sigmas of their own that are
    tensors, or sigma has a gradient.
    """
    one = leaf.spec.sampling == "batch" and not leaf.differs_by_head
    return not leaf.values or (one and not leaf.is_learned)


def blur_arguments(leaf: Active) -> BlurArguments:
    """The arguments of a blur leaf.

    Under a compiler sigma_max goes into the gate: as a number it would be a constant, and a graph compiled for
    each value of a schedule.
    """
    spec: BlurSmoothing = leaf.spec
    if leaf.values:
        sigma = blur_sigma(leaf, LogitShape(1, 1, 1, 1), next(iter(leaf.values.values())).dtype)
        return BlurArguments(sigma.view(()), (leaf.number, "batch", 1.0, 1.0, spec.width, spec.edges == "renormalize"))
    gate, low, high = leaf.gate, spec.sigma_min, spec.sigma_max
    if torch.compiler.is_compiling() and high > 0:
        one = torch.ones((), dtype=torch.float32, device=leaf.seed.device) if gate is None else gate
        gate, low, high = one * high, low / high if low > 0 else 0.0, 1.0
    return BlurArguments(gate, (leaf.number, spec.sampling, low, high, spec.width, spec.edges == "renormalize"))
