"""The arguments by which our operators are told what to decide: a rate and a stream of draws for each of four slots."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import BackendError
from ..call.leaves import DROPOUT_STREAM, Active
from ..call.one_call import Call
from ..call.stages import Drop, Plan, Stage, WeightDrop
from ..eager.table import entry_of


class Slot(NamedTuple):
    """One slot of `call.decisions.Decisions`: its rate, the stream of its draws (-1: the slot is empty), its gate."""

    rate: float
    stream: int
    gate: Tensor | None


def decisions_of(call: Call, plan: Plan) -> tuple[Any, ...]:
    """The fields of `call.decisions.Decisions` from `seed` to `scale`."""
    inputs, seed, dropout_p = call.inputs, call.seed, call.dropout_p
    if seed is None:  # nothing is drawn, but an operator takes a tensor
        seed = torch.zeros((), dtype=torch.int64, device=inputs.q.device)
    slots = [
        *(_slot_of(leaf) for leaf in (plan.noise, plan.drop, plan.dropout)),
        Slot(dropout_p, DROPOUT_STREAM if dropout_p > 0 else -1, None),
    ]
    gates, rates = _gates_and_rates(slots, seed, inputs.compute_dtype)
    kind, top = drop_of(plan.drop, inputs.shape.columns)
    return seed, gates, rates, [slot.stream for slot in slots], kind, top, call.visibility.causal, inputs.scale


def stage_of(spec: Any) -> Stage:
    """The stage of a regulariser that has one, as every regulariser of a plan does."""
    stage = entry_of(spec).stage
    if stage is None:
        raise BackendError(f"{spec.name} has no fused path")
    return stage


def drop_of(leaf: Active | None, columns: int) -> Drop:
    """What our operators are told about the drop of a plan."""
    drop = None if leaf is None else stage_of(leaf.spec).drop
    return Drop("") if leaf is None or drop is None else drop(leaf.spec, columns)


def weight_drop_of(leaf: Active | None, columns: int) -> WeightDrop:
    """The same about what a plan does to the weights."""
    weights = None if leaf is None else stage_of(leaf.spec).weights
    return WeightDrop() if leaf is None or weights is None else weights(leaf.spec, columns)


def _slot_of(leaf: Active | None) -> Slot:
    if leaf is None:
        return Slot(0.0, -1, None)
    rate = leaf.vector(stage_of(leaf.spec).rate)
    if isinstance(rate, Tensor):
        return Slot(1.0, leaf.number, rate if leaf.gate is None else rate * leaf.gate)
    return Slot(rate, leaf.number, leaf.gate)


def rate_of(leaf: Active, dtype: torch.dtype) -> tuple[float, Tensor | None]:
    """The rate of one regulariser as a number, and the gate that multiplies it, if there is one.

    While compiling, the number goes into the gate, as in `decisions_of`.
    """
    slot = _slot_of(leaf)
    if not torch.compiler.is_compiling():
        return slot.rate, slot.gate
    one = torch.ones((), dtype=dtype, device=leaf.seed.device) if slot.gate is None else slot.gate
    return 1.0, one * slot.rate


def _gates_and_rates(slots: list[Slot], seed: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, list[float]]:
    """The rates as numbers, and the gates as one tensor with an entry for each slot; None if no slot has a gate.

    A compiler takes the numbers for constants, and would compile again for each value of a schedule. While compiling,
    the rates are therefore multiplied into the gates, which are a tensor.
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
