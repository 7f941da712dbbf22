"""Calls of the kernels for short rows that were made before: finding their plan again takes longer than the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...specs import Spec
from ..call.inputs import Options
from ..call.one_call import Call
from ..call.sharded import refuse_context_parallel
from ..call.stages import Plan as Places
from ..draws import draw_seed, draw_untouched
from ..untouched import is_watched
from .short_rows import apply_untouched, written_plan

#: How a call looks -> its plan.
_known: dict[tuple[Any, ...], str] = {}
#: Lengths may change all the time.
_MOST = 1024


def repeat(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    drop: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    backend: str,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    groups: int = 1,
) -> Tensor | None:
    """The output of a call like an earlier one; None if there was none, or somebody watches.

    No tensor but queries, keys, values and seed may take part in the call. Compilers must not trace this function:
    they would compile again whenever another call becomes known.
    """
    if not _known or is_watched() or forward_ad._current_level >= 0:
        return None
    if not type(q) is type(k) is type(v) is Tensor or q.is_nested:
        return None
    if drop is not None and not isinstance(drop, Spec):
        return None  # its rates are tensors
    plan = _known.get(_key(q, k, v, drop, dropout_p, is_causal, scale, enable_gqa, backend, groups))
    if plan is None or _are_other(q, k, v):
        return None
    refuse_context_parallel()
    if seed is None:
        seed = draw_untouched(q) if generator is None else draw_seed(q, generator)
    output: Tensor = apply_untouched(q, k, v, seed, None, None, None, None, plan)
    return output


def remember(
    q: Tensor, k: Tensor, v: Tensor, drop: Any, options: Options, backend: str, groups: int, call: Call, places: Places
) -> None:
    """Note the plan of a call that took this path, unless it depends on more than `repeat` is told."""
    if any(leaf.gate is not None or leaf.values for leaf in call.leaves) or places.heads:
        return
    if len(_known) >= _MOST:
        _known.clear()
    _, dropout_p, is_causal, scale, enable_gqa, *_ = options
    key = _key(q, k, v, drop, dropout_p, is_causal, scale, enable_gqa, backend, groups)
    _known[key] = written_plan(call, places)


def _key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    drop: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    backend: str,
    groups: int,
) -> tuple[Any, ...]:
    # What is refused must not look like a call that was not: whatever the checks of a call read belongs here.
    return (
        drop, dropout_p, is_causal, scale, enable_gqa, backend, groups, q.dtype, k.dtype, v.dtype,
        q.shape, k.shape, v.shape, q.get_device(), k.get_device(), v.get_device(),
    )  # fmt: skip


def _are_other(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the tensors are not computed with as they are: autocast changes their dtype, or a transform left them."""
    if torch.is_autocast_enabled("cuda") and q.dtype is not torch.get_autocast_dtype("cuda"):
        return True
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return is_wrapped(q) or is_wrapped(k) or is_wrapped(v)
