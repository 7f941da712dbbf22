"""What a spec computes: the definitions with its fields, and whole attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import bad_argument
from ..schedules import PerHead
from ..specs import (
    AttentionDropout,
    BlurSmoothing,
    Compose,
    Consistency,
    DropAttention,
    DropHead,
    DropKey,
    GaussianNoise,
    HardMasking,
    HeadMask,
    OneOf,
    Spec,
    TemperatureNoise,
)
from .definitions import (
    Array,
    Pullback,
    Result,
    Step,
    Weights,
    attention_dropout,
    blur_smoothing,
    drop_attention,
    drop_key,
    gaussian_noise,
    hard_masking,
    head_factors,
    head_mask,
    masked_softmax,
    temperature_noise,
    visibility,
)


def chosen_leaves(spec: Spec | None, draws: Any) -> list[tuple[Spec, Any]]:
    """The regularisers that act in this call, with their draws: `OneOf` resolved, `Consistency` left out."""
    if spec is None or isinstance(spec, Consistency):
        return []
    if isinstance(spec, Compose):
        return [leaf for part, draw in zip(spec.parts, draws, strict=True) for leaf in chosen_leaves(part, draw)]
    if isinstance(spec, OneOf):
        uniform, parts = draws
        index = min(int((np.cumsum(spec.weights) <= uniform).sum()), len(spec.parts) - 1)
        return chosen_leaves(spec.parts[index], parts[index])
    return [(spec, draws)]


def _hard(spec: HardMasking, logits: Array, visible: Array, draw: Array) -> Step:
    return hard_masking(logits, visible, draw, _by_head(spec.p), spec.k, spec.fill, spec.heads == "stratified")


def _blur(spec: BlurSmoothing, logits: Array, visible: Array, draw: Array) -> Step:
    low, high = (_vector(value) for value in (spec.sigma_min, spec.sigma_max))
    uniform = np.asarray(draw, dtype=np.float64)
    by_head = low + (high - low) * (uniform[..., None] if spec.sampling == "sample" else uniform)
    return blur_smoothing(logits, visible, by_head, spec.width, spec.axes, spec.edges)


def _noise(spec: GaussianNoise, logits: Array, visible: Array, draw: Array) -> Step:
    return gaussian_noise(logits, visible, draw, _by_head(spec.sigma))


def _temperature(spec: TemperatureNoise, logits: Array, visible: Array, draw: Array) -> Step:
    return temperature_noise(logits, visible, draw, _vector(spec.sigma))


def _drop_key(spec: DropKey, logits: Array, visible: Array, draw: Array) -> Step:
    return drop_key(logits, visible, draw if spec.by == "element" else draw[:, :, None, :], _by_head(spec.p))


def _dropout(spec: AttentionDropout, weights: Array, draw: Array) -> Weights:
    return attention_dropout(weights, draw, _by_head(spec.p))


def _drop_attention(spec: DropAttention, weights: Array, draw: Array) -> Weights:
    return drop_attention(weights, draw if spec.by == "element" else draw[:, :, None, :], _by_head(spec.p), spec.span)


def _drop_head(spec: DropHead, weights: Array, draw: Array) -> Weights:
    return _scaled_heads(weights, head_factors(draw, _vector(spec.p)))


def _head_mask(spec: HeadMask, weights: Array, draw: Array) -> Weights:
    return _scaled_heads(weights, np.broadcast_to(head_mask(draw, spec.count), weights.shape[:2]))


def _scaled_heads(weights: Array, by_head: Array) -> Weights:
    factors = by_head[:, :, None, None]
    return Weights(weights * factors, lambda g: g * factors)


#: The oracle of each regulariser: (spec, logits, visible, draw) -> `Step` before the softmax, (spec, weights, draw) ->
#: `Weights` after it. The fields come from the spec.
DEFINITIONS: dict[type[Spec], Callable[..., Any]] = {
    HardMasking: _hard,
    BlurSmoothing: _blur,
    GaussianNoise: _noise,
    TemperatureNoise: _temperature,
    DropKey: _drop_key,
    AttentionDropout: _dropout,
    DropAttention: _drop_attention,
    DropHead: _drop_head,
    HeadMask: _head_mask,
}


def definition(spec: Spec) -> Callable[..., Any]:
    """The oracle of one regulariser."""
    if type(spec) not in DEFINITIONS:
        raise bad_argument("spec", "a regulariser that attentiondrop.reference defines", str(spec))
    return DEFINITIONS[type(spec)]


def perturb_logits(spec: Spec, logits: Array, visible: Array, draw: Array) -> Step:
    """Apply one logit-level regulariser, with its fields taken from the spec."""
    if spec.level != "logits":
        raise bad_argument("spec", "a logit-level regulariser", str(spec))
    step: Step = definition(spec)(spec, logits, visible, draw)
    return step


def _vector(rate: Any) -> Any:
    """The rate in a form that broadcasts against [B, H]."""
    return np.asarray(rate.values) if isinstance(rate, PerHead) else rate


def _by_head(rate: Any) -> Any:
    """The rate in a form that broadcasts against [B, H, N, M]."""
    return _vector(rate)[:, None, None] if isinstance(rate, PerHead) else rate


def attention(
    q: Array,
    k: Array,
    v: Array,
    spec: Spec | None = None,
    draws: Any = None,
    *,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_draws: Array | None = None,
    window: tuple[int, int] | None = None,
    blocks: tuple[Array, int] | None = None,
) -> Result:
    """Attention over [B, H, N, D] queries and [B, Hk, M, D] keys in float64, H a multiple of Hk.

    >>> q = k = v = np.eye(2)[None, None]
    >>> attention(q, k, v, HardMasking(p=0.5, k=1), draws=np.zeros((1, 1, 2, 2))).weights.round(3)
    array([[[[0.5, 0.5],
             [0.5, 0.5]]]])
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, groups, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    visible = visibility((*q.shape[:-1], k.shape[-2]), attn_mask, is_causal, window, blocks)

    products = scale * (q @ keys.swapaxes(-1, -2))
    capped = products if softcap is None else softcap * np.tanh(products / softcap)
    logits = capped if bias is None else capped + bias
    if attn_mask is not None and attn_mask.dtype != bool:
        logits = logits + np.where(attn_mask > np.finfo(attn_mask.dtype).min / 2, attn_mask, 0.0)

    leaves = chosen_leaves(spec, draws)
    pullbacks: list[Pullback] = []
    step = Step(logits, visible, lambda g: g)
    for leaf, draw in leaves:
        if leaf.level == "logits":
            step = perturb_logits(leaf, step.logits, step.visible, draw)
            pullbacks.append(step.pullback)
    soft = masked_softmax(step.logits, step.visible, sinks)
    pullbacks.append(soft.pullback)
    weights = soft.weights
    after = [(leaf, draw) for leaf, draw in leaves if leaf.level == "weights"]
    if dropout_p > 0:
        after.append((AttentionDropout(dropout_p), np.asarray(dropout_draws)))
    after += [(leaf, draw) for leaf, draw in leaves if leaf.level == "heads"]
    for leaf, draw in after:
        changed: Weights = definition(leaf)(leaf, weights, draw)
        weights = changed.weights
        pullbacks.append(changed.pullback)

    def gradients(d_output: Array) -> tuple[Array, Array, Array, Array]:
        d = d_output @ values.swapaxes(-1, -2)
        for pullback in reversed(pullbacks):
            d = pullback(d)
        d_products = d if softcap is None else d * (1 - np.square(capped / softcap))
        d_keys = scale * (d_products.swapaxes(-1, -2) @ q)
        d_values = weights.swapaxes(-1, -2) @ d_output
        grouped = (q.shape[0], k.shape[1], groups)
        # One for each query head; those that share a key head are summed up.
        d_keys, d_values = (x.reshape(*grouped, *x.shape[2:]).sum(2) for x in (d_keys, d_values))
        return scale * (d_products @ keys), d_keys, d_values, d

    return Result(weights @ values, weights, gradients)
