"""Hard masking on top of torch's own fused attention, as one operator that corrects the results of torch.

The kernels of `kernels.decide` make a decision at every logit, and are slower than cuDNN's. Here one sweep finds the k
largest logits of each row. Torch computes the attention as if nothing was dropped. Then the few dropped keys are taken
out of the output and the gradients (docs/kernels.md says how).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call.decisions import Decisions, empty_lse, empty_notes
from ..call.inputs import unit_stride
from ..call.one_call import Call
from ..call.stages import Plan
from ..kernels import library_attention
from .blurred_keys import operands
from .operators import Operator, like_inputs, register
from .slots import decisions_of

# The limits below are where this path is faster than the kernels that decide at every logit; see docs/speed.md.
#: The most of a row's largest logits that are picked out one by one.
MOST = 8
FEWEST_KEYS = 1024
#: At higher rates many rows lose so much of their weight that they are not corrected, but computed a second time.
HIGHEST_RATE = 0.15


def amended_attention(call: Call, plan: Plan, kernel: str) -> Tensor:
    """Output [B, H, N, E] of hard masking without a mask, by the `kernel` of torch that `dispatch` chose."""
    q, k, v, _ = operands(call, plan.blurs)
    output: Tensor = torch.ops.attentiondrop.hard_masked_attention(q, k, v, *decisions_of(call, plan), kernel)[0]
    return output


def _taken_apart(*rest: Any) -> tuple[Decisions, str]:
    """The decisions, and the kernel of torch, from the arguments after q, k and v."""
    return Decisions(None, None, *rest[:-1]), rest[-1]


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from ..kernels.amend import amended_passes as passes

    results: tuple[Tensor, ...] = passes.forward(q, k, v, *_taken_apart(*rest))
    return results


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    from ..kernels.amend import amended_passes as passes
    from ..kernels.decide import launch

    output, lse, listed_lse, lost, low, high, cut, keep = rest[:8]
    # The kernels treat every row that they compute a second time as one with ties, and do not read `tied`. Nor do they
    # read `growth`, which hard masking does not have.
    notes = launch.Notes(low, high, cut, keep, tied=lost, growth=low)
    gradients: tuple[Tensor, Tensor, Tensor] = passes.backward(
        grad, q, k, v, output, lse, listed_lse, lost, notes, *_taken_apart(*rest[8:])
    )
    return gradients


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    decisions, kernel = _taken_apart(*rest)
    lse = q.new_empty(library_attention.lse_shape(kernel, q), dtype=torch.float32)
    lost = q.new_empty((*q.shape[:-1], decisions.top), dtype=torch.int32)
    notes = empty_notes(q, k, decisions.drop, decisions.top)[:4]
    # torch's kernels write their output in the memory order of the queries.
    return torch.empty_like(unit_stride(q)), lse, empty_lse(q), lost, *notes


register(
    Operator(
        "hard_masked_attention",
        ("q", "k", "v"),
        "Tensor seed, Tensor? gates, float[] rates, int[] streams, str drop, int top, bool is_causal, float scale, "
        "str kind",
        ("output", "lse", "listed_lse", "lost", "low", "high", "cut", "keep"),
        _forward,
        _backward,
        _fake_forward,
        like_inputs,
    )
)
