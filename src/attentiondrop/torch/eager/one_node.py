"""Eager attention as one node of the graph of autograd, for calls that only drop single logits or weights.

Where logits are few, recording a dozen operations takes longer than computing them. The node computes what the
operations would compute, forward and backward. Derivatives of higher order are made of the operations, recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import hashing
from ...specs import HardMasking
from ..call.leaves import Active
from ..call.one_call import Call
from ..draws import is_recorded_as_usual
from ..untouched import is_untouched
from . import regularisers
from .regularisers import top_k_without_ties
from .table import entry_of


class _Plain(NamedTuple):
    """What the node takes beside queries, keys and values."""

    scale: float
    visible: Tensor | None
    #: From logits to what is dropped of them, or of the weights.
    decide: Callable[[Tensor], Tensor]
    #: What becomes of it: "zero" or "hide", for logits, or "weights".
    how: str
    #: What kept weights are multiplied by.
    factor: regularisers.Rate


class _Computed(NamedTuple):
    """The result, and what the backward needs of the way to it.

    `used` are the weights after dropout, or `weights` themselves. The gradients of logits are 0 where `cut` is True,
    and so are those of weights where `dropped` is; None is nowhere.
    """

    output: Tensor
    used: Tensor
    weights: Tensor
    cut: Tensor | None
    dropped: Tensor | None


def alone(call: Call) -> Active | None:
    """The regulariser of the call if this node computes it, otherwise None."""
    if len(call.leaves) != 1 or call.bias is not None or call.softcap is not None or call.sinks is not None:
        return None
    leaf, inputs = call.leaves[0], call.inputs
    q, k, v = inputs.q, inputs.k, inputs.v
    suits = (
        q.is_cpu  # elsewhere, operations wait for the device
        and entry_of(leaf.spec).decide is not None
        and call.dropout_p == 0
        and q.dtype == inputs.compute_dtype
        and q.shape[1] == k.shape[1]
        and not leaf.is_learned()
        and is_recorded_as_usual(q, k, v)
    )
    return leaf if suits else None


def attention_in_one_node(call: Call, leaf: Active) -> tuple[Tensor, Tensor]:
    """The output and the weights of the call."""
    inputs = call.inputs
    return _attend(inputs.q, inputs.k, inputs.v, _plain(call, leaf))


def repeated(call: Call, leaf: Active) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """From queries, keys, values and seed to output and weights, for calls that look like `call`."""
    first, spec, shape = _plain(call, leaf), leaf.spec, call.inputs.shape
    number, lines, columns = leaf.number, shape.batch * shape.heads * shape.rows, shape.columns
    few = lines * columns <= regularisers.FEW and first.visible is None
    if not few or first.how == "weights" or type(spec) is not HardMasking or spec.heads == "stratified":

        def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
            decide = functools.partial(_decide, Active(spec, seed, number), first.visible)
            return _attend(q, k, v, first._replace(decide=decide))

        return run
    limit = np.uint32(hashing.limit_of(spec.p))

    def run_by_numpy(q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        def decide(logits: Tensor) -> Tensor:
            selected = top_k_without_ties(logits.numpy(), spec.k) if spec.k < columns else None
            if selected is None or spec.fill != "zero":
                return _decide(Active(spec, seed, number), None, logits)
            words = hashing.line_and_column_words(hashing.stream_key(int(seed.item()), number), lines, columns)
            below = words[:lines, None] * words[lines:] <= limit
            return torch.from_numpy(np.logical_and(selected, below.reshape(selected.shape), selected))

        return _attend(q, k, v, _Plain(first.scale, None, decide, first.how, 1.0))

    return run_by_numpy


def _plain(call: Call, leaf: Active) -> _Plain:
    inputs, stage = call.inputs, entry_of(leaf.spec).stage
    rows, columns = inputs.q.shape[2], inputs.k.shape[2]
    visible = call.visibility.dense(rows, columns, inputs.q.device)
    decide = functools.partial(_decide, leaf, visible)
    if stage is None or stage.drop is None:
        return _Plain(inputs.scale, visible, decide, "weights", regularisers.kept_factor(leaf.rate("p")))
    how = "zero" if stage.drop(leaf.spec, columns).kind == "zero" else "hide"
    return _Plain(inputs.scale, visible, decide, how, 1.0)


def _decide(leaf: Active, visible: Tensor | None, logits: Tensor) -> Tensor:
    return entry_of(leaf.spec).decide(leaf, logits, visible)  # type: ignore[misc]


def _attend(q: Tensor, k: Tensor, v: Tensor, plain: _Plain) -> tuple[Tensor, Tensor]:
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
        found = _compute(q, k, v, plain)
        return found.output, found.used
    output, weights = _Node.apply(q, k, v, plain)
    return output, weights


def _compute(q: Tensor, k: Tensor, v: Tensor, plain: _Plain) -> _Computed:
    scale, visible, decide, how, factor = plain
    logits = (q * scale) @ k.transpose(-1, -2)
    dropped = decide(logits.detach())
    if how == "weights":
        weights = regularisers.masked_softmax(logits, visible)
        used = (weights * factor).masked_fill(dropped, 0.0)
        return _Computed(used @ v, used, weights, None if visible is None else ~visible, dropped)
    fill = 0.0 if how == "zero" else -torch.inf
    # In place, unless a mode watches operations and keeps their results.
    logits = logits.masked_fill_(dropped, fill) if is_untouched() else logits.masked_fill(dropped, fill)
    if visible is None:
        weights = torch.softmax(logits, dim=-1)
        return _Computed(weights @ v, weights, weights, dropped, None)
    weights = regularisers.masked_softmax(logits, visible if how == "zero" else visible & ~dropped)
    return _Computed(weights @ v, weights, weights, dropped | ~visible, None)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plain: _Plain) -> tuple[Tensor, Tensor]:
        found = _compute(q, k, v, plain)
        ctx.save_for_backward(q, k, v, *found[1:])
        ctx.plain = plain
        ctx.set_materialize_grads(False)
        return found.output, found.used

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None and grads[1] is None:
            return None, None, None, None
        q, k, v, *others = ctx.saved_tensors
        found = _Computed(q, *others)  # the output itself is not needed
        if torch.is_grad_enabled() or not is_recorded_as_usual(q, k, v):
            return *_recorded(ctx, (q, k, v), found, grads), None
        return *_gradients(ctx, (q, k, v), found, grads), None


def _gradients(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], found: _Computed, grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """The gradients of queries, keys and values."""
    (q, k, v), (of_output, grad), scale = inputs, grads, ctx.plain.scale
    needs_q, needs_k, needs_v, _ = ctx.needs_input_grad
    result: list[Tensor | None] = [None, None, None]
    if needs_v and of_output is not None:
        result[2] = found.used.transpose(-1, -2) @ of_output
    if not needs_q and not needs_k:
        return result
    if of_output is not None:
        through_output = of_output @ v.transpose(-1, -2)
        grad = through_output if grad is None else through_output + grad
    if found.dropped is not None:
        grad = grad.masked_fill(found.dropped, 0.0) * ctx.plain.factor  # type: ignore[union-attr]
    grad = torch._softmax_backward_data(grad, found.weights, -1, found.weights.dtype)  # type: ignore[arg-type]
    if found.cut is not None:
        grad = grad.masked_fill_(found.cut, 0.0) if is_untouched() else grad.masked_fill(found.cut, 0.0)
    if needs_q:
        result[0] = (grad @ k) * scale
    if needs_k:
        result[1] = ((q * scale).transpose(-1, -2) @ grad).transpose(-1, -2)
    return result


def _recorded(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], found: _Computed, grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """The same as recorded operations, which have derivatives of their own. What was decided stays decided."""
    (q, k, v), plain = inputs, ctx.plain
    with torch.enable_grad():
        logits = (q * plain.scale) @ k.transpose(-1, -2)
        visible = plain.visible
        if plain.how == "weights":
            weights = regularisers.masked_softmax(logits, visible) * plain.factor
            weights = weights.masked_fill(found.dropped, 0.0)
        elif plain.how == "hide":
            weights = regularisers.masked_softmax(logits, ~found.cut)  # type: ignore[operator]
        else:
            weights = regularisers.masked_softmax(logits.masked_fill(found.cut, 0.0), visible)
        output = weights @ v
        wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
        pairs = [(y, grad) for y, grad in zip((output, weights), grads, strict=True) if grad is not None]
        results = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [grad for _, grad in pairs], create_graph=True, allow_unused=True
            )
        )
    return [next(results) if needed else None for needed in ctx.needs_input_grad[:3]]
