"""`attention`: what `torch.nn.functional.scaled_dot_product_attention` takes, plus a spec."""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ArgumentError, bad_argument
from ..parsing import parse
from ..specs import Spec
from ..validation import number, one_of
from .call.causal_bias import without_causal_bias
from .call.inputs import Options, check_sinks, check_tensors, normalise, refuse_nested
from .call.known_calls import Signature, signature_of
from .call.leaves import Active, Driven, active_leaves
from .call.one_call import make_call
from .call.sharded import refuse_context_parallel, refuse_sharded_sequences
from .call.watching import Watcher
from .dispatch import BACKENDS, Backend, Route, choose
from .draws import check_generator, draw_seed
from .eager.attention import eager_attention, head_factors
from .fused.amended_hard import amended_attention
from .fused.blurred_causal import causal_blurred_attention
from .fused.blurred_keys import sdpa_attention
from .fused.blurred_library import blurred_attention
from .fused.decide_inside import decided_attention
from .fused.repeated_short import remember, repeat
from .fused.short_rows import short_attention
from .known_routes import known_run, remember_route
from .untouched import is_transformed


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | str | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    training: bool = True,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: tuple[int, int] | None = None,
    blocks: Any = None,
) -> Tensor:
    """Scaled dot-product attention whose distribution is perturbed as `drop` says.

    Shapes, masks and broadcasting are those of `F.scaled_dot_product_attention`; with `drop=None` or `training=False`
    this is that call, with the same arguments. Rows that see no key give zeros.

    Args:
        query: [..., H, N, D] or [..., N, D].
        key: [..., Hk, M, D]; `enable_gqa=True` lets several query heads share a key head.
        value: [..., Hk, M, E].
        drop: what to do to the attention: a spec, or its text (which is read anew in each call). A `Consistency` inside
            is left to `consistency_loss`.
        attn_mask: boolean (True: visible) or additive, broadcastable to [..., H, N, M].
        dropout_p: dropout of the attention weights, as in SDPA, after the perturbation.
        is_causal: row i sees the keys j <= i. Not together with `attn_mask`, as in SDPA.
        scale: of the dot products; `1 / sqrt(D)` by default.
        enable_gqa: grouped queries.
        training: whether the perturbation acts.
        generator: where the call's seed comes from; the default generator of the device otherwise.
        backend: "eager" materialises the logits; "fused" never does, and raises `BackendError` where it cannot run;
            "auto" takes fused where it can.
        bias: added to the logits. Unlike an additive mask it hides nothing, and it goes together with `attn_mask` and
            `is_causal`.
        softcap: logits become `softcap * tanh(logits / softcap)` before mask, bias and perturbation.
        sinks: one logit for each head that takes part in the softmax without being a key.
        window: `(left, right)`: row i sees the keys from `i - left` to `i + right`; -1 stands for all of that side. It
            goes together with `attn_mask` and `is_causal`, and no N x M tensor is built for it.
        blocks: block-sparse visibility, `attentiondrop.torch.Blocks` or a `BlockMask` of flex_attention; also together
            with the others.

    Returns:
        [..., H, N, E] in the dtype that SDPA would return.

    Example:
        >>> import attentiondrop as ad
        >>> q, k, v = torch.randn(3, 2, 4, 10, 8)
        >>> attention(q, k, v, ad.HardMasking(p=0.1, k=3), is_causal=True).shape
        torch.Size([2, 4, 10, 8])
    """
    if isinstance(drop, str):
        drop = parse(drop)
    if drop is not None and not isinstance(drop, Spec):
        raise bad_argument("drop", "a spec such as attentiondrop.HardMasking(), its text, or None", drop)
    one_of("backend", backend, BACKENDS)
    extras = any(given is not None for given in (bias, softcap, sinks, window, blocks))
    if (drop is None or not training) and not extras:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return perturbed_attention(
        query,
        key,
        value,
        drop if training else None,
        Options(attn_mask, dropout_p, is_causal, scale, enable_gqa, bias, softcap, sinks, window, blocks),
        generator,
        backend,
    ).output


class Attended(NamedTuple):
    """`weights` [..., H, N, M] is None where a fused path ran."""

    output: Tensor
    weights: Tensor | None


def perturbed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven | None,
    options: Options,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    seed: Tensor | None = None,
    monitor: Watcher | None = None,
    groups: int = 1,
) -> Attended:
    """The computation behind `attention`. It also returns the weights, if the eager path made them.

    `seed` replaces the seed that the call would draw. `monitor` measures the call, but not inside `torch.func`.
    `groups`: the batch has so many equal parts, one after the other, that share no draw, such as views.
    """
    options = without_causal_bias(options, query, key)
    if options.scale is not None and type(options.scale) not in (float, int):
        options = options._replace(scale=_number_of_scale(options.scale))
    if monitor is not None and is_transformed():
        monitor.leave_out()  # its sums could not be kept
        monitor = None
    signature = None
    # A call like one before needs no checks. (Measured calls are never like one before: what is measured changes.)
    if monitor is None:
        known, signature = _repeated(query, key, value, drop, options, generator, backend, seed, groups)
        if known is not None:
            return known
    number("dropout_p", options.dropout_p, 0.0, 1.0)
    if type(options.scale) is float and not torch.compiler.is_compiling():  # (A compiler may not know the number.)
        number("scale", options.scale, -math.inf)
    if options.softcap is not None and not number("softcap", options.softcap, 0.0) > 0:
        raise bad_argument("softcap", "a number > 0", options.softcap)
    check_generator(generator)
    if options.attn_mask is not None and options.is_causal:
        raise ArgumentError("is_causal: expected False where attn_mask is given, as in scaled_dot_product_attention")
    check_tensors(query, key, value)
    if drop is not None:
        refuse_sharded_sequences(query, key)
        refuse_nested(query, drop.spec if isinstance(drop, Driven) else drop)
    kind = query.device.type
    # torch has no autocast for meta tensors.
    casts = kind != "meta" and torch.is_autocast_enabled(kind)
    if casts:
        query, key, value = _autocast(query, key, value)
        if signature is None and monitor is None:
            known, signature = _repeated(query, key, value, drop, options, generator, backend, seed, groups)
            if known is not None:
                return known
    with torch.autocast(kind, enabled=False) if casts else contextlib.nullcontext():
        return _attended(query, key, value, drop, options, generator, backend, seed, monitor, signature, groups)


def _repeated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven | None,
    options: Options,
    generator: torch.Generator | None,
    backend: Backend,
    seed: Tensor | None,
    groups: int,
) -> tuple[Attended | None, Signature | None]:
    """The results of a call like an earlier one, if there was one. If not, the signature to remember it by."""
    mask, dropout_p, is_causal, scale, enable_gqa, *others = options
    if mask is None and all(other is None for other in others) and not torch.compiler.is_compiling():
        like = drop, dropout_p, is_causal, scale, enable_gqa, backend, generator, seed, groups
        output = repeat(query, key, value, *like)
        if output is not None:
            return Attended(output, None), None
    signature = signature_of(query, key, value, drop, options, backend, groups)
    known = known_run(signature) if signature is not None and query.is_cpu else None
    if known is None:
        return None, signature
    refuse_context_parallel()
    return Attended(*known(query, key, value, draw_seed(query, generator) if seed is None else seed)), None


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | Driven | None,
    options: Options,
    generator: torch.Generator | None,
    backend: Backend,
    seed: Tensor | None,
    monitor: Watcher | None,
    signature: Signature | None,
    groups: int,
) -> Attended:
    """`perturbed_attention` of arguments that were checked, with autocast off."""
    inputs = normalise(query, key, value, options)
    check_sinks(options.sinks, inputs.shape.heads)
    if seed is None and (drop is not None or options.dropout_p != 0):
        seed = draw_seed(query, generator)
    # Meta tensors have no values to measure.
    turn = None if monitor is None or query.is_meta else monitor.turn(drop, seed, inputs.shape.heads)
    leaves = leaves_of(drop if turn is None else turn.drop, seed, inputs.compute_dtype, inputs.shape.heads, groups)
    call = make_call(inputs, leaves, options, seed)
    route = choose(call, backend)
    output, weights = _run(route)
    if signature is not None and route.path == "short rows" and inputs.q is query and inputs.k is key:
        remember(query, key, value, drop, options, backend, groups, call, route.plan)
    elif signature is not None and query.is_cpu and inputs.q is query and inputs.k is key and inputs.v is value:
        remember_route(signature, route, _run)
    if monitor is not None and turn is not None and not turn.again:
        monitor.measure(call, turn.new)
    return Attended(inputs.restore(output), None if weights is None else inputs.restore(weights))


def leaves_of(
    drop: Spec | Driven | None, seed: Tensor | None, dtype: torch.dtype, heads: int, groups: int = 1
) -> list[Active]:
    """The regularisers of a call with so many heads. A spec without any, such as a `Consistency`, is an error."""
    if drop is None or seed is None:
        return []
    leaves = active_leaves(drop, seed, dtype, groups)
    if not leaves:
        text = str(drop.spec if isinstance(drop, Driven) else drop)
        raise bad_argument("drop", "a spec that acts on attention (consistency acts on model outputs)", text)
    for leaf in leaves:
        for field, value in leaf.values.items():
            if value.ndim == 1 and value.shape[0] != heads:
                raise bad_argument(field, f"a rate for each of {heads} heads", f"{value.shape[0]} in {leaf.spec}")
    return leaves


def _run(route: Route) -> tuple[Tensor, Tensor | None]:
    """Output [B, H, N, E], and the weights [B, H, N, M] if the logits were built."""
    if route.path == "eager":
        return eager_attention(route.call)
    if route.path == "shapes only":
        return eager_attention(route.call)[0], None
    return fused_attention(route), None


def fused_attention(route: Route) -> Tensor:
    """Output [B, H, N, E] of a fused path."""
    path, call, plan, kernel = route
    if path == "short rows":
        output = short_attention(call, plan)
    elif path == "amended":
        output = amended_attention(call, plan, kernel)
    elif path in ("decided inside", "row blocks"):
        output = decided_attention(call, plan, blur_logits=path == "row blocks")
    elif path == "blurred":
        output = blurred_attention(call, plan.blurs[0], kernel)
    elif path == "blurred causal":
        output = causal_blurred_attention(call, plan.blurs[0])
    else:
        output = sdpa_attention(call, plan)
    for leaf in plan.heads:
        output = output * head_factors(leaf, call.inputs.shape, call.inputs.compute_dtype).to(output.dtype)
    return output


def _number_of_scale(scale: Any) -> Any:
    """A scale of another type as a number. As in SDPA, a tensor must not need a gradient: not all paths give it one."""
    if isinstance(scale, torch.SymFloat | torch.SymInt):
        return scale  # it follows from shapes that vary while somebody traces the call
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise bad_argument("scale", "a number (one that is learned: attention(query * number, ..., scale=1.0))", scale)
    if isinstance(scale, Tensor) and scale.ndim == 0 and torch.compiler.is_compiling():
        return scale.item()
    return number("scale", scale, -math.inf)


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the dtype that autocast gives to the arguments of SDPA."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]
