"""How a call looks, if it might be a repetition of an earlier one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...specs import Spec
from ..untouched import is_untouched
from .inputs import Options


class Signature(NamedTuple):
    """All that the plan of a call depends on, if no tensor but queries, keys and values takes part."""

    drop: Any
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    backend: str
    #: Of queries, keys and values: dtype, device and shape.
    tensors: tuple[tuple[torch.dtype, torch.device, torch.Size], ...]


def signature_of(
    q: Tensor, k: Tensor, v: Tensor, drop: Any, options: Options, backend: str, cast: bool = False
) -> Signature | None:
    """The signature of a call that might be known; None if other tensors take part, or somebody watches.

    Under autocast it is that of tensors which are `cast` already.
    """
    if not (type(q) is type(k) is type(v) is Tensor and (q.is_cpu or q.is_cuda)):
        return None
    if not isinstance(drop, Spec | None):
        return None  # its rates are tensors
    if forward_ad._current_level >= 0 or not is_untouched():
        return None
    if not cast and torch.is_autocast_enabled(q.device.type):
        return None
    return describe(q, k, v, drop, options, backend)


def describe(q: Tensor, k: Tensor, v: Tensor, drop: Spec | None, options: Options, backend: str) -> Signature | None:
    """The signature of a call in which no other tensor takes part; None if one does."""
    mask, dropout_p, is_causal, scale, enable_gqa, *others = options
    if mask is not None or any(other is not None for other in others):
        return None
    # What is refused must not look like a call that was not: whatever the checks of a call read belongs here.
    tensors = tuple([(x.dtype, x.device, x.shape) for x in (q, k, v)])
    return Signature(drop, dropout_p, is_causal, scale, enable_gqa, backend, tensors)
