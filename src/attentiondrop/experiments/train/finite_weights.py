"""Whether weights are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of all tensors are finite. Waits for the device once, after few kernels.

    >>> are_finite([torch.ones(2), torch.tensor([1.0, math.nan])])
    False
    """
    largest = torch._foreach_norm([tensor.detach() for tensor in tensors], math.inf)
    return bool(torch.stack([norm.float() for norm in largest]).isfinite().all())
