"""The fused paths: attention that never holds a tensor of the size of the logits.

Three of them. Where only queries, keys and whole heads change, SDPA runs on blurred keys (`blurred_keys`). Where single
logits or weights are decided on, the operator of `decide_inside` does it: Triton kernels on CUDA, blocks of rows on a
CPU. And hard masking alone, on CUDA, corrects the results of torch's own attention (`amended_hard`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..call.inputs import Inputs, repeat_heads
from ..call.leaves import DROPOUT_STREAM, Active
from ..call.stages import Plan
from ..call.visibility import Visibility
from ..eager.attention import head_factors
from ..kernels.support import has_kernels, why_no_kernels
from . import amended_hard
from . import decide_inside as _registered  # noqa: F401
from .blurred_keys import blurred_attention, blurred_operands, why_not_blurred
from .plan import drop_of, stage_of


def why_not_fused(
    inputs: Inputs,
    plan: Plan,
    visibility: Visibility,
    bias: Tensor | None,
    dropout_p: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> str | None:
    """The reason why this call has no fused path, or None if it has one."""
    if softcap is not None:
        return "a soft cap on the logits has no fused path"
    if sinks is not None:
        return "attention sinks have no fused path"
    inside = _runs_inside(inputs, plan, bias, dropout_p)
    return why_not_blurred(inputs, plan, visibility, bias, inside) or (
        _why_not_inside(inputs, plan, bias) if inside else None
    )


def _runs_inside(inputs: Inputs, plan: Plan, bias: Tensor | None, dropout_p: float) -> bool:
    """Whether our own operator runs, rather than SDPA.

    It does where something is decided inside; and where a bias is wider than 16-bit queries, be it a sum of two or a
    blurred one: on a GPU torch's kernels take a bias in the dtype of the queries only, and rounding it would show.
    """
    if plan.decides_inside(dropout_p):
        return True
    narrow = inputs.q.dtype != inputs.compute_dtype
    wide = narrow and bias is not None and (bias.dtype != inputs.q.dtype or bool(plan.blurs))
    return wide and not _is_plain_cpu(inputs.q)


def _is_plain_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and not has_kernels(x)


def _why_not_inside(inputs: Inputs, plan: Plan, bias: Tensor | None) -> str | None:
    leaves = [leaf for leaf in (plan.noise, plan.drop, plan.dropout) if leaf is not None]
    if any(leaf.differs_by_head for leaf in leaves):
        return "rates that differ between heads need the logits"
    if any(leaf.is_learned for leaf in leaves):
        return "the gradient of a rate that is learned needs the logits"
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of a bias or an additive mask needs the gradients of all logits"
    size = max(inputs.q.shape[-1], inputs.v.shape[-1])
    if _is_plain_cpu(inputs.q):
        return None  # blocks of rows
    if size > 256:
        return f"there are no kernels for a head size of {size} (at most 256)"
    return why_no_kernels(inputs.q)


#: Logits that a CPU holds easily: 16 MiB in float32.
_FEW_LOGITS = 2**22
#: Below these, row blocks spend more on bookkeeping than they save: logits in all, and keys of a row.
_TINY_LOGITS = 2**15
_TINY_ROW = 32


def is_eager_better(inputs: Inputs, plan: Plan, bias: Tensor | None, dropout_p: float) -> bool:
    """Whether "auto" should build the logits although it need not.

    Activation checkpointing runs a forward without gradients and then again with them. A bias that needs a gradient
    takes the eager path then, so it must take it the first time, too, when nothing tells yet that it will need one.

    On a CPU, row blocks compute everything again in the backward. Where that is noise or dropout, and the logits are
    few, eager took 0.69 to 0.83 of the time (one thread, 8x6x197x64). Hard masking and DropKey in blocks took 0.4 to
    1.1 of eager's time (two threads, from 16x4x33x16 to 1x8x1024x64), but 1.1 to 1.7 on rows of 17 keys, and up to 2 on
    some ten thousand logits. On a GPU the fused paths always won.
    """
    if not _runs_inside(inputs, plan, bias, dropout_p):
        return False
    if bias is not None and not torch.is_grad_enabled():
        return True
    if inputs.q.device.type != "cpu":
        return False
    shape = inputs.shape
    logits = shape.batch * shape.heads * shape.rows * shape.columns
    tiny = logits <= _TINY_LOGITS or shape.columns < _TINY_ROW
    return logits <= _FEW_LOGITS and (tiny or plan.drop is None)


def fused_attention(
    inputs: Inputs, plan: Plan, visibility: Visibility, bias: Tensor | None, seed: Tensor | None, dropout_p: float
) -> Tensor:
    """Output [B, H, N, E]. `why_not_fused` has found nothing against it."""
    if _runs_inside(inputs, plan, bias, dropout_p):
        if seed is None:  # nothing is drawn
            seed = torch.zeros((), dtype=torch.int64, device=inputs.q.device)
        output = _decided_inside(inputs, plan, visibility, bias, seed, dropout_p)
    else:
        output = blurred_attention(inputs, plan, visibility, bias)
    for leaf in plan.heads:
        output = output * head_factors(leaf, inputs.shape, inputs.compute_dtype).to(output.dtype)
    return output


def _decided_inside(
    inputs: Inputs, plan: Plan, visibility: Visibility, bias: Tensor | None, seed: Tensor, dropout_p: float
) -> Tensor:
    q, k, v = inputs.q, inputs.k, inputs.v
    if plan.blurs:
        q, k, bias = blurred_operands(inputs, plan.blurs, visibility.keys, bias)
        v = repeat_heads(v, k.shape[1])
    slots = [
        *(_Slot.of(leaf) for leaf in (plan.noise, plan.drop, plan.dropout)),
        _Slot(dropout_p, DROPOUT_STREAM if dropout_p > 0 else -1, None),
    ]
    kind, top = drop_of(plan.drop, k.shape[2])
    visible = visibility.keys if visibility.pairs is None else visibility.pairs
    streams = [slot.stream for slot in slots]
    alone = visible is None and bias is None and all(stream < 0 for stream in (streams[0], *streams[2:]))
    library = (
        amended_hard.kind_for(q, k, v, kind, top, slots[1].bound, visibility.causal, inputs.scale) if alone else ""
    )
    gates, rates = _gates_and_rates(slots, seed, inputs.compute_dtype)
    numbers = (seed, gates, rates, streams, kind, top, visibility.causal, inputs.scale)
    if library:
        results = torch.ops.attentiondrop.hard_masked_attention(q, k, v, *numbers, library)
    else:
        results = torch.ops.attentiondrop.fused_attention(q, k, v, visible, bias, *numbers)
    output: Tensor = results[0]
    return output


class _Slot:
    """One of the four places in the operator: a rate, the stream of its draws (-1: absent), and a gate.

    `bound` is what rate times gate never exceeds.
    """

    def __init__(self, rate: float, stream: int, gate: Tensor | None, bound: float = math.inf) -> None:
        self.rate, self.stream, self.gate, self.bound = rate, stream, gate, bound

    @classmethod
    def of(cls, leaf: Active | None) -> _Slot:
        if leaf is None:
            return cls(0.0, -1, None)
        field = stage_of(leaf.spec).rate
        rate = leaf.vector(field)
        if isinstance(rate, Tensor):
            return cls(1.0, leaf.number, rate if leaf.gate is None else rate * leaf.gate, leaf.bound(field))
        return cls(rate, leaf.number, leaf.gate, leaf.bound(field))


def _gates_and_rates(slots: list[_Slot], seed: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, list[float]]:
    """Rates as the operator takes them: numbers, and one gate for each slot where a slot has one.

    A compiler takes the numbers for constants and would compile anew for each value of a schedule, so under it the
    rates go into the gates, which are a tensor.
    """
    rates = [slot.rate for slot in slots]
    compiling = torch.compiler.is_compiling()
    if not compiling and all(slot.gate is None for slot in slots):
        return None, rates
    one = torch.ones((), dtype=dtype, device=seed.device)
    gates = [one if slot.gate is None else slot.gate for slot in slots]
    if not compiling:
        return torch.stack(gates), rates
    return torch.stack([gate * rate for gate, rate in zip(gates, rates, strict=True)]), [1.0] * len(slots)
