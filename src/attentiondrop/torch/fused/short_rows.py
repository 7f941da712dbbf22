"""Attention of rows with at most 256 keys, by kernels of their own (`docs/speed.md` has their times).

The operator serves compilers and whoever watches operations. A plain call skips it: the way through the dispatcher of
torch would take longer than the kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..call.decisions import HIDING, is_ranked
from ..call.leaves import DROPOUT_STREAM, Active
from ..call.one_call import Call
from ..call.stages import Plan as Places
from ..call.visibility import visible_keys
from ..kernels.short.plans import Plan, empty_results, read, written
from ..kernels.short.run_kernels import backward, forward
from ..untouched import is_untouched
from .blur_arguments import blur_arguments
from .derivatives import checked
from .operators import Operator, like_inputs, register
from .slots import drop_of, rate_of, weight_drop_of


def short_attention(call: Call, places: Places) -> Tensor:
    """Output [B, H, N, E] of a call that `dispatch` found to be short."""
    inputs = call.inputs
    plan, gate, dropout_gate, blur_gate = _planned(call, places)
    extras = call.seed, gate, dropout_gate, blur_gate, visible_keys(call.visibility), written(plan)
    output: Tensor
    if is_untouched():
        output = _Untouched.apply(inputs.q, inputs.k, inputs.v, *extras)
    else:
        output = torch.ops.attentiondrop.short_attention(inputs.q, inputs.k, inputs.v, *extras)[0]
    return output


def _planned(call: Call, places: Places) -> tuple[Plan, Tensor | None, Tensor | None, Tensor | None]:
    """The plan of a call, and the factors on its two rates and on its sigmas."""
    drop, dropout = drops_of(places)
    kind, stream, rate, gate = Kind("", 0, False), 0, 0.0, None
    if drop is not None:
        kind, stream, (rate, gate) = kind_of(drop, call.inputs.shape.columns), drop.number, rate_of(drop, torch.float32)
    dropout_rate, dropout_gate, dropout_stream = call.dropout_p, None, DROPOUT_STREAM
    if dropout is not None:
        dropout_stream, (dropout_rate, dropout_gate) = dropout.number, rate_of(dropout, torch.float32)
    has_dropout = dropout is not None or dropout_rate > 0
    blur_gate, blur = None, (0, "batch", 0.0, 0.0, 1, False, 1)
    if places.blurs:
        blur_gate, blur = blur_arguments(places.blurs[0])
    blur_stream, sampling, sigma_min, sigma_max, width, renormalize, groups = blur
    plan = Plan(
        kind.drop, kind.top, kind.hide, call.visibility.causal, width // 2, renormalize, stream, float(rate),
        kind.by_column, kind.shares, kind.span, has_dropout, dropout_stream if has_dropout else 0, float(dropout_rate),
        blur_stream, sampling, sigma_min, sigma_max, call.inputs.scale, groups,
    )  # fmt: skip
    return plan, gate, dropout_gate, blur_gate


def drops_of(places: Places) -> tuple[Active | None, Active | None]:
    """What the kernels do as a drop, and what as a dropout: `DropAttention` counts as a drop (see `layout.cuh`)."""
    if places.dropout is not None and weight_drop_of(places.dropout, 1).by_share:
        return places.dropout, None
    return places.drop, places.dropout


class Kind(NamedTuple):
    """What a drop chooses from, of how many of the largest, and whether it hides; the rest as in `Plan`."""

    drop: str
    top: int
    hide: bool
    by_column: bool = False
    shares: bool = False
    span: int = 1


def kind_of(leaf: Active, columns: int) -> Kind:
    """What the kernels are told about a drop."""
    weights = weight_drop_of(leaf, columns)
    if weights.by_share:
        return Kind("every", 0, True, weights.by_column, True, weights.span)
    kind, top = drop_of(leaf, columns)
    ranked = is_ranked(kind, top, columns)
    return Kind("largest" if ranked else "every", top if ranked else 0, kind in HIDING, kind == "column")


def written_plan(call: Call, places: Places) -> str:
    """The plan of a call as the kernels get it."""
    return written(_planned(call, places)[0])


class _Untouched(torch.autograd.Function):
    """The operator, for a call that nobody watches."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seed: Tensor | None,
        gate: Tensor | None,
        dropout_gate: Tensor | None,
        blur_gate: Tensor | None,
        visible: Tensor | None,
        plan: str,
    ) -> Tensor:
        output, notes = forward(q, k, v, seed, gate, dropout_gate, blur_gate, visible, plan)
        ctx.save_for_backward(q, k, v, output, notes, seed, gate, dropout_gate, blur_gate, visible)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or forward_ad._current_level >= 0 or not is_untouched():
            d_q, d_k, d_v = _watched_backward(ctx, *grads)
        else:
            d_q, d_k, d_v = backward(grads[0], *(*ctx.saved_tensors, ctx.plan))
        return d_q, d_k, d_v, None, None, None, None, None, None


#: `_Untouched.apply` without the search for tensors that a transform of functions has left, which takes long.
apply_untouched = super(torch.autograd.Function, _Untouched).apply


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.ops.attentiondrop.short_attention_backward(grad, *ctx.saved_tensors, ctx.plan)
    return found


#: Says which derivatives there are not.
_watched_backward = checked("short_attention", _operator_backward)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return empty_results(q, k, read(rest[5]))


register(
    Operator(
        "short_attention",
        ("q", "k", "v"),
        "Tensor? seed, Tensor? gate, Tensor? dropout_gate, Tensor? blur_gate, Tensor? visible, str plan",
        ("output", "notes"),
        forward,
        backward,
        _fake_forward,
        like_inputs,
    )
)
