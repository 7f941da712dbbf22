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
    #: Stream, sampling, sigma_min, sigma_max, width, whether the edges are renormalised, and the groups of the batch.
    sigma: tuple[int, str, float, float, int, bool, int]


def suits_operators(leaf: Active) -> bool:
    """Whether our operators can do this blur.

    They cannot if a sigma is learned, or if heads have tensors of their own. If samples, heads or groups draw sigmas of
    their own from a tensor, they can only if `sigma_min` is 0.
    """
    if not leaf.values:
        return True
    if leaf.is_learned() or leaf.differs_by_head():
        return False
    is_one = leaf.spec.sampling == "batch" and leaf.groups == 1
    return is_one or _begins_at_zero(leaf)


def blur_arguments(leaf: Active) -> BlurArguments:
    """The arguments of a blur leaf.

    A compiler takes numbers for constants, and would compile again for each value of a schedule. While compiling,
    sigma_max is therefore multiplied into the gate, which is a tensor. So is a sigma_max that is a tensor anyway: from
    0 to 1 the operators draw the uniform itself, and `uniform * sigma_max` has the same bits as `blur_sigma`.
    """
    spec: BlurSmoothing = leaf.spec
    rest = spec.width, spec.edges == "renormalize", leaf.groups
    if leaf.values and _begins_at_zero(leaf):
        largest = leaf.values["sigma_max"]
        largest = largest if leaf.gate is None else leaf.gate * largest
        return BlurArguments(largest, (leaf.number, spec.sampling, 0.0, 1.0, *rest))
    if leaf.values:
        sigma = blur_sigma(leaf, LogitShape(1, 1, 1, 1), next(iter(leaf.values.values())).dtype)
        return BlurArguments(sigma.view(()), (leaf.number, "batch", 1.0, 1.0, *rest))
    gate, low, high = leaf.gate, spec.sigma_min, spec.sigma_max
    if torch.compiler.is_compiling() and high > 0:
        one = torch.ones((), dtype=torch.float32, device=leaf.seed.device) if gate is None else gate
        gate, low, high = one * high, low / high if low > 0 else 0.0, 1.0
    return BlurArguments(gate, (leaf.number, spec.sampling, low, high, *rest))


def _begins_at_zero(leaf: Active) -> bool:
    return "sigma_min" not in leaf.values and leaf.spec.sigma_min == 0.0
