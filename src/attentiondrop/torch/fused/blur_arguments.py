"""A blur in the form of arguments of our operators."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...specs import BlurSmoothing
from ..call.leaves import Active, LogitShape
from ..eager.table import blur_sigma


class BlurArguments(NamedTuple):
    """Our operators draw sigma themselves, on the device, and multiply it by the gate."""

    gate: Tensor | None
    #: Stream, sampling, sigma_min, sigma_max, width, and whether the edges are renormalised.
    sigma: tuple[int, str, float, float, int, bool]


def suits_operators(leaf: Active) -> bool:
    """Whether our operators can do this blur.

    They cannot if its limits are tensors and sigma differs between heads or samples, or if sigma needs a gradient.
    """
    one = leaf.spec.sampling == "batch" and not leaf.differs_by_head
    return not leaf.values or (one and not leaf.is_learned)


def blur_arguments(leaf: Active) -> BlurArguments:
    """The arguments of a blur leaf.

    A compiler takes numbers for constants, and would compile again for each value of a schedule. While compiling,
    sigma_max is therefore multiplied into the gate, which is a tensor.
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
