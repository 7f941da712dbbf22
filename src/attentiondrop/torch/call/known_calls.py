"""How a call looks, if it might be a repetition of an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...specs import Spec
from ..untouched import is_untouched
from .inputs import Options

#: Computes a call that was seen before: from queries, keys, values and seed to output and weights.
Run = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


class Signature(NamedTuple):
    """All that the plan of a call depends on, if no tensor but queries, keys and values takes part."""

    drop: Any
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    backend: str
    groups: int
    #: Of queries, keys and values: dtype, device and shape.
    tensors: tuple[tuple[torch.dtype, torch.device, torch.Size], ...]


def signature_of(
    q: Tensor, k: Tensor, v: Tensor, drop: Any, options: Options, backend: str, groups: int
) -> Signature | None:
    """The signature of a call that might be known; None if other tensors take part, or somebody watches."""
    if not (type(q) is type(k) is type(v) is Tensor and (q.is_cpu or q.is_cuda)):
        return None
    if drop is not None and not isinstance(drop, Spec):
        return None  # its rates are tensors
    if q.is_nested or k.is_nested or v.is_nested:
        return None  # without a shape; refused later
    if forward_ad._current_level >= 0 or not is_untouched():
        return None
    kind = q.device.type
    # On a CPU, what is known is made of operations that autocast would change.
    if torch.is_autocast_enabled(kind) and (kind == "cpu" or not _are(torch.get_autocast_dtype(kind), q, k, v)):
        return None
    return describe(q, k, v, drop, options, backend, groups)


def _are(dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.dtype is k.dtype is v.dtype is dtype


def describe(
    q: Tensor, k: Tensor, v: Tensor, drop: Spec | None, options: Options, backend: str, groups: int = 1
) -> Signature | None:
    """The signature of a call in which no other tensor takes part; None if one does."""
    mask, dropout_p, is_causal, scale, enable_gqa, bias, softcap, sinks, window, blocks = options
    if mask is not None or bias is not None or softcap is not None:
        return None
    if sinks is not None or window is not None or blocks is not None:
        return None
    # What is refused must not look like a call that was not: whatever the checks of a call read belongs here.
    tensors = (q.dtype, q.device, q.shape), (k.dtype, k.device, k.shape), (v.dtype, v.device, v.shape)
    return Signature(drop, dropout_p, is_causal, scale, enable_gqa, backend, groups, tensors)
