"""Draws of samples and heads, in one launch where kernels can run: as operations of torch, the hash takes a hundred."""

from __future__ import annotations

import math

from torch import Tensor

from ..call.leaves import Active, LogitShape
from ..kernels.support import why_no_kernels_on
from ..untouched import is_untouched


def drawn_uniforms(leaf: Active, shape: LogitShape) -> Tensor:
    """`leaf.draw(shape)` of a regulariser that draws a uniform for samples, heads or groups, or one for all: the same
    bits.

    A compiler makes one kernel of the operations of torch, too. Whoever else watches them must see them.
    """
    seed = leaf.seed
    if type(seed) is not Tensor or leaf.excerpt is not None or not is_untouched() or why_no_kernels_on(seed.device):
        return leaf.draw(shape)
    from ..kernels.shared.drawn_uniforms import uniform_vector  # imports Triton

    if leaf.draws_for_groups():
        return leaf.of_samples(uniform_vector(seed, leaf.number, leaf.groups), shape)
    wanted = leaf.spec.draws.shape(*shape)
    return uniform_vector(seed, leaf.number, math.prod(wanted)).view(wanted)
