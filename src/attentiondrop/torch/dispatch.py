"""Which path a call of `attention` takes, and every reason why that is not a fused one.

To be read from top to bottom: `choose` decides; below it stand the reasons against a fused path, in the order in which
they are asked, and then which of the fused paths it is. Nothing is computed here, and no tensor is read. Two kinds of
reasons are looked up elsewhere: those that concern one regulariser alone, in its entry in `eager.table`, and whether a
device has kernels at all, in `kernels.support`.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import BackendError
from .call.decisions import is_ranked
from .call.leaves import Active, Branch, are_exclusive
from .call.one_call import Call
from .call.stages import PLACES, SINGLE, Plan
from .eager.table import entry_of
from .fused import amended_hard
from .fused.blurred_keys import can_blur_by_kernel
from .fused.decide_inside import why_not_by_kernels
from .fused.derivatives import has_tangent, is_in_functional_gradient
from .fused.slots import drop_of, stage_of
from .fused.why_not_short import why_not_short
from .kernels import library_attention
from .kernels.attention_with_lse import has_lse
from .kernels.support import has_kernels

Backend = Literal["auto", "eager", "fused"]
BACKENDS = ("auto", "eager", "fused")

Path = Literal[
    "eager",  # builds the logits (`eager.attention`)
    "shapes only",  # a call on meta tensors, which have no values: any path gives the right shapes
    "sdpa",  # `F.scaled_dot_product_attention`, on blurred queries and keys if there is a blur (`fused.blurred_keys`)
    "blurred",  # the same for one blur without a mask, as one operator (`fused.blurred_library`)
    "blurred causal",  # blurred keys, with a correction near the diagonal (`fused.blurred_causal`)
    "amended",  # torch's attention, corrected where hard masking drops a key (`fused.amended_hard`)
    "short rows",  # kernels for rows with few keys, which decide inside and blur on the way (`fused.short_rows`)
    "decided inside",  # an operator that decides at every logit (`fused.decide_inside`)
    "row blocks",  # the same operator, a block of rows at a time, on any device; it blurs logits instead of keys
]


class Route(NamedTuple):
    """The path of a call, and what this path takes."""

    path: Path
    call: Call
    #: The regularisers by their place in a fused pass. The paths that are not fused take those of the call.
    plan: Plan = Plan((), None, None, None, ())
    #: The kernel of torch that the paths "blurred" and "amended" use.
    kernel: str = ""


def choose(call: Call, backend: Backend) -> Route:
    """The path of a call; a `BackendError` with the reason if `backend` is "fused" and no fused path can run."""
    if backend == "eager":
        return Route("eager", call.with_compact_mask(look=False))
    plan = _why_not_differentiable(call) or plan_of(call.leaves)
    call = call.with_compact_mask(look=isinstance(plan, Plan) and len(plan.blurs) > 0)
    if call.inputs.q.is_meta:
        return Route("shapes only", call)
    reason: str | None
    if isinstance(plan, Plan):
        inside = _decides_inside(call, plan)
        if backend == "auto" and inside and _is_eager_better(call, plan):
            return Route("eager", call)
        reason = _why_not_fused(call, plan, inside)
        if reason is None:
            return _fused_route(call, plan, inside)
        wanted = call.visibility.is_local() if backend == "fused" else _are_many_logits(call)
        if wanted and (plan.blurs or call.visibility.is_local()) and _why_not_row_blocks(call, plan) is None:
            return Route("row blocks", call, plan)
    else:
        reason = plan
    if backend == "fused":
        raise BackendError(f'backend="fused" cannot run here: {reason}; use "auto" or "eager"')
    return Route("eager", call)


# --- why not: derivatives --------------------------------------------------------------------------------------------


def _why_not_differentiable(call: Call) -> str | None:
    """The reason why derivatives of a fused path would be wrong or missing.

    Second derivatives by `create_graph=True` are not among them: the forward cannot know that they will be asked for.
    The backward refuses them (`fused.derivatives`).
    """
    inputs = call.inputs
    if has_tangent(inputs.q, inputs.k, inputs.v, call.bias):
        return "fused operators have no forward-mode derivative (torch.func.jvp)"
    if not torch.compiler.is_compiling() and is_in_functional_gradient():
        return "fused operators do not know the gradients of torch.func (torch.autograd computes them)"
    return None


# --- why not: the spec -----------------------------------------------------------------------------------------------


def plan_of(leaves: list[Active]) -> Plan | str:
    """The regularisers by their place in a fused pass, or the reason why they do not fit into one pass."""
    described = tuple((leaf.spec, leaf.branches) for leaf in leaves)
    # A compiler ignores such a cache, and warns of it.
    order = _order(described) if torch.compiler.is_compiling() else _order_once(described)
    if isinstance(order, str):
        return order
    noise, drop, dropout = (
        None if index is None else leaves[index] for index in (order.noise, order.drop, order.dropout)
    )
    return Plan(
        tuple([leaves[index] for index in order.blurs]),
        noise,
        drop,
        dropout,
        tuple([leaves[index] for index in order.heads]),
    )


class _Order(NamedTuple):
    """A `Plan` that has the indices of the regularisers. It is the same for all calls with one spec."""

    blurs: tuple[int, ...]
    noise: int | None
    drop: int | None
    dropout: int | None
    heads: tuple[int, ...]


def _order(described: tuple[tuple[Any, tuple[Branch, ...]], ...]) -> _Order | str:
    places = []
    for spec, _ in described:
        stage = entry_of(spec).stage
        if stage is None:
            return f"{spec.name} has no fused path"
        if reason := stage.why_not(spec):
            return reason
        places.append(stage.place)
    logits = [index for index, (spec, _) in enumerate(described) if spec.level == "logits"]
    for first, later in itertools.combinations(logits, 2):
        (spec, branches), (later_spec, later_branches) = described[first], described[later]
        # Two parts of one `OneOf` never act together, so their order does not matter.
        is_wrong = PLACES.index(places[later]) < PLACES.index(places[first])
        if is_wrong and not are_exclusive(branches, later_branches):
            return f"{later_spec.name} after {spec.name} needs the logits"
    found: dict[str, list[int]] = {place: [] for place in PLACES}
    for index, place in enumerate(places):
        if place != "blur" or described[index][0].width > 1:
            found[place].append(index)
    for single, plural in SINGLE.items():
        if len(found[single]) > 1:
            return f"there is no fused path for several {plural} at once"
    noise, drop, dropout = (next(iter(found[name]), None) for name in ("noise", "drop", "dropout"))
    return _Order(tuple(found["blur"]), noise, drop, dropout, tuple(found["heads"]))


_order_once = functools.lru_cache(maxsize=1024)(_order)


# --- why not: arguments, masks and devices ---------------------------------------------------------------------------


def _why_not_fused(call: Call, plan: Plan, inside: bool) -> str | None:
    if call.softcap is not None:
        return "a soft cap on the logits has no fused path"
    if call.sinks is not None:
        return "attention sinks have no fused path"
    by_torch = not inside and (len(plan.blurs) > 0 or call.inputs.q.device.type == "cpu")
    if by_torch and call.visibility.causal and call.inputs.scale <= 0:
        return "torch's causal attention on a CPU gives NaN for a scale of 0 or less"
    reason = _why_not_blurred(call, plan, inside) if plan.blurs else None
    return reason or (_why_not_inside(call, plan) if inside else None)


def _why_not_blurred(call: Call, plan: Plan, inside: bool) -> str | None:
    """The reason why blurred keys do not give the blurred logits."""
    q, visibility = call.inputs.q, call.visibility
    if torch.compiler.is_compiling() and q.dtype == torch.float64 and q.device.type == "cpu":
        return "the compiler of torch 2.11 takes the log-sum-exp of float64 attention on a CPU for float32"
    if visibility.is_local():
        return "rows that see a window or blocks of keys do not share blurred keys"
    if visibility.pairs is not None:
        if torch.compiler.is_compiling():
            return (
                "a mask with a row dimension cannot be read while compiling (pass it as [..., 1, M] or use is_causal)"
            )
        return "the mask hides different keys from different rows, so they do not share blurred keys"
    if not visibility.causal:
        return None
    if inside:
        if why_not_short(call, plan) is None:
            return None
        return "causal blur together with decisions on single logits or weights needs the logits in longer rows"
    if len(plan.blurs) > 1:
        return "several blurs under a causal mask do not reduce to blurred keys"
    if call.bias is not None:
        return "causal blur with an additive bias has no fused path yet"
    if not has_lse(q):
        return f"there is no fused attention with a log-sum-exp for {q.dtype} on {q.device.type}"
    return None


def _why_not_row_blocks(call: Call, plan: Plan) -> str | None:
    """The reason why blocks of rows do not serve a call that blurred keys, or kernels, do not serve."""
    if call.softcap is not None or call.sinks is not None:
        return "row blocks know no soft cap and no sinks"
    if len(plan.blurs) > 1 or any(leaf.spec.axes != "keys" for leaf in plan.blurs):
        return "row blocks blur once, along the keys"
    if any(leaf.is_learned() for leaf in plan.blurs):
        return "the gradient of a rate that is learned needs the logits"
    return _why_not_decided(call, plan)


def _decides_inside(call: Call, plan: Plan) -> bool:
    """Whether an operator of ours computes the attention, rather than torch's.

    It does where something is decided at single logits or weights, and where rows see a window or blocks of keys. It
    also does where the bias is wider than 16-bit queries (the sum of two, or a blurred one): on a GPU torch's kernels
    take a bias in the dtype of the queries only, and rounding it would change the result visibly.
    """
    if plan.decides_inside(call.dropout_p) or call.visibility.is_local():
        return True
    q, bias = call.inputs.q, call.bias
    is_wide = (
        bias is not None and q.dtype != call.inputs.compute_dtype and (bias.dtype != q.dtype or len(plan.blurs) > 0)
    )
    return is_wide and not _runs_in_row_blocks(q)


def _runs_in_row_blocks(q: Tensor) -> bool:
    """Whether our operator would run in blocks of rows (`fused.row_blocks`), rather than by Triton kernels."""
    return q.device.type == "cpu" and not has_kernels(q)


def _why_not_decided(call: Call, plan: Plan) -> str | None:
    """The reason why neither kernels nor row blocks decide in this call."""
    leaves = [leaf for leaf in (plan.noise, plan.drop, plan.dropout) if leaf is not None]
    if any(leaf.differs_by_head() for leaf in leaves):
        return "rates that differ between heads need the logits"
    if any(leaf.is_learned() for leaf in leaves):
        return "the gradient of a rate that is learned needs the logits"
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of a bias or an additive mask needs the gradients of all logits"
    return None


def _why_not_inside(call: Call, plan: Plan) -> str | None:
    """The reason why no operator of ours computes this call."""
    inputs = call.inputs
    if (reason := _why_not_decided(call, plan)) or _runs_in_row_blocks(inputs.q):
        return reason
    return why_not_by_kernels(inputs.q, inputs.k, inputs.v, call.visibility.blocks)


# --- where "auto" prefers eager --------------------------------------------------------------------------------------

#: Logits that a CPU holds easily: 16 MiB in float32.
_FEW_LOGITS = 2**22
#: Below these, row blocks spend more on bookkeeping than they save: logits in all, and keys of a row.
_TINY_LOGITS = 2**15
_TINY_ROW = 32
#: More logits than this are not built if row blocks can do without: 64 MiB in float32 on a CPU, 1 GiB elsewhere.
_MANY_LOGITS_ON_CPU = 2**24
_MANY_LOGITS = 2**28
#: Under a window, row blocks leave out most logits, and so they are soon the faster ones.
_MANY_UNDER_A_WINDOW = 2**20


def _are_many_logits(call: Call) -> bool:
    """Whether "auto" prefers row blocks to the eager path, which is faster as long as memory allows it."""
    most = _MANY_LOGITS_ON_CPU if call.inputs.q.device.type == "cpu" else _MANY_LOGITS
    return math.prod(call.inputs.shape) > (most if call.visibility.window is None else _MANY_UNDER_A_WINDOW)


def _is_eager_better(call: Call, plan: Plan) -> bool:
    """Whether "auto" builds the logits although our operator could do without.

    Activation checkpointing runs a forward without gradients and then again with them. A bias that needs a gradient
    takes the eager path then. It must take it the first time, too, when nothing says yet that it will need one.

    On a CPU, row blocks compute everything again in the backward. That costs more than it saves where the logits are
    few, and the work is noise or dropout, or the rows are short.
    """
    if call.bias is not None and not torch.is_grad_enabled():
        return True
    if call.inputs.q.device.type != "cpu":
        return False
    shape = call.inputs.shape
    logits = shape.batch * shape.heads * shape.rows * shape.columns
    tiny = logits <= _TINY_LOGITS or shape.columns < _TINY_ROW
    return logits <= _FEW_LOGITS and (tiny or plan.drop is None)


# --- which fused path ------------------------------------------------------------------------------------------------


def _fused_route(call: Call, plan: Plan, inside: bool) -> Route:
    # Where every spec is the identity, as a blur of width 1, these kernels still take less time than torch's.
    is_identity = len(call.leaves) > 0 and len(plan.heads) == 0
    if (inside or plan.blurs or is_identity) and why_not_short(call, plan) is None:
        return Route("short rows", call, plan)
    kernel, visibility, drop = "", call.visibility, plan.drop
    is_masked = visibility.keys is not None or visibility.pairs is not None or visibility.is_local()
    is_unmasked = call.bias is None and not is_masked
    if inside:
        only_drops = plan.noise is None and plan.dropout is None and call.dropout_p == 0
        if is_unmasked and only_drops and drop is not None:
            kernel = amending_kernel(call, drop)
        return Route("amended" if kernel else "decided inside", call, plan, kernel)
    if not plan.blurs:
        return Route("sdpa", call, plan)
    if visibility.causal:
        return Route("blurred causal", call, plan)
    inputs = call.inputs
    if is_unmasked and inputs.q.shape[1] == inputs.k.shape[1] and can_blur_by_kernel(call, plan.blurs):
        kernel = library_attention.choose(inputs.q, inputs.k, inputs.v) or ""
    return Route("blurred" if kernel else "sdpa", call, plan, kernel)


def amending_kernel(call: Call, leaf: Active) -> str:
    """The kernel of torch whose results hard masking without any mask can correct; "" if there is none.

    Under `torch.use_deterministic_algorithms` there is none: the backward of torch's kernels adds in an order that
    changes from run to run.
    """
    inputs, columns = call.inputs, call.inputs.shape.columns
    if columns < amended_hard.FEWEST_KEYS or inputs.scale <= 0:
        return ""
    drop = drop_of(leaf, columns)
    if not is_ranked(drop.kind, drop.top, columns) or drop.top > amended_hard.MOST:
        return ""
    if call.visibility.causal and inputs.shape.rows != columns:
        return ""
    if torch.are_deterministic_algorithms_enabled():
        return ""
    kernel = library_attention.choose(inputs.q, inputs.k, inputs.v) or ""
    # The bound comes last: code that was compiled without it serves all rates.
    return kernel if kernel and leaf.bound(stage_of(leaf.spec).rate) <= amended_hard.HIGHEST_RATE else ""
