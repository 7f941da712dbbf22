"""Every reason why the kernels for short rows do not serve a call (`dispatch` asks)."""

from __future__ import annotations

import torch

from ..call.one_call import Call
from ..call.stages import Plan
from ..call.visibility import visible_keys
from ..kernels.short import build as short_kernels
from ..kernels.short import variants as short
from ..kernels.support import compute_capability, has_kernels
from .blur_arguments import suits_operators
from .short_rows import drops_of, kind_of


def why_not_short(call: Call, plan: Plan) -> str | None:
    """The reason why the kernels for short rows do not serve this call."""
    inputs, visibility = call.inputs, call.visibility
    q, shape = inputs.q, inputs.shape
    if q.device.type != "cuda" or torch.version.hip is not None:
        return "the kernels for short rows need CUDA"
    if not 0 < shape.columns <= short.MOST_KEYS:
        return f"rows are short up to {short.MOST_KEYS} keys"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"there are no kernels for short rows of {q.dtype}"
    # (A size that a compiler does not know becomes a plain number here.)
    head_size = next((size for size in short.HEAD_SIZES if size == q.shape[-1] == inputs.v.shape[-1]), None)
    if head_size is None:
        return f"the kernels for short rows need a head size of {', '.join(map(str, short.HEAD_SIZES))}"
    if 2 * q.shape[1] * max(shape.rows, shape.columns) * head_size > short.FARTHEST:
        return f"the kernels for short rows take at most {short.FARTHEST} bytes of a sample"
    if call.bias is not None or inputs.scale <= 0:
        return "the kernels for short rows know no additive bias, and no scale of 0 or less"
    if plan.noise is not None:
        return "the kernels for short rows know no noise"
    drop, dropout = drops_of(plan)
    if (dropout is not None and call.dropout_p > 0) or (drop is not plan.drop and plan.drop is not None):
        return "the kernels for short rows do one drop and one dropout, not several"
    # (Where all keys are candidates, none has to be chosen.)
    kind = None if drop is None else kind_of(drop, shape.columns)
    if kind is not None and kind.top > short.MOST_OF_TOP:
        return f"the kernels for short rows choose from at most {short.MOST_OF_TOP} of the largest logits"
    visible = visible_keys(visibility)
    if visibility.is_local() or (visible is None and visibility.pairs is not None):
        return "the kernels for short rows know masks of keys only"
    if visible is not None and visible.shape[1] > 1 and q.shape[1] != inputs.k.shape[1]:
        return "heads that share keys need one mask"
    has_dropout = True if dropout is not None or call.dropout_p > 0 else False  # noqa: SIM210 (a compiler decides here)
    reason = _why_not_short_blur(call, plan) or _why_no_short_kernels(q.device.index)
    if reason is not None:
        return reason
    most = _most_short_keys(q.device.index, head_size, "" if kind is None else kind.drop, has_dropout)
    return None if shape.columns <= most else f"there is enough shared memory for {most} keys only"


def _why_not_short_blur(call: Call, plan: Plan) -> str | None:
    if not plan.blurs:
        return None
    spec = plan.blurs[0].spec
    if len(plan.blurs) > 1 or spec.axes != "keys" or spec.width > short.WIDEST_BLUR:
        return f"the kernels for short rows blur once, along the keys, with a width of at most {short.WIDEST_BLUR}"
    if not suits_operators(plan.blurs[0]):
        return (
            "the kernels for short rows take a sigma that is a tensor if it is not learned, heads share it, and "
            "sigma_min is 0 or all samples share one sigma"
        )
    if call.visibility.causal and not has_kernels(call.inputs.q):
        return "causal blur in short rows also needs Triton"
    if spec.sampling == "head" and call.inputs.q.shape[1] != call.inputs.k.shape[1]:
        return "heads that share keys need one sigma"
    return None


def _why_no_short_kernels(index: int) -> str | None:
    """The same for the device."""
    if compute_capability(index) < 80:
        return "the kernels for short rows need compute capability 8.0"
    return short_kernels.why_not_built()


def _most_short_keys(index: int, head_size: int, drop: str, dropout: bool) -> int:
    """How many keys of a row fit into the shared memory of a device."""
    return short.most_keys(head_size, drop, dropout, short_kernels.device_of(index))


# A compiler treats the results as constants. So it must know all arguments: none may depend on the length of a row.
_why_no_short_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
_most_short_keys._dynamo_marked_constant = True  # type: ignore[attr-defined]
