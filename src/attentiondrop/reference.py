"""The oracle: what every backend must compute, in NumPy and float64, one short function for each definition.

The functions are slow but simple, and not random: the draws are arguments. Each regulariser also returns its pullback
(the transpose of its derivative), so that gradients have a reference too.

The draws of each spec:

========================  ==========================================================================================
`HardMasking`, `DropKey`  uniforms in [0, 1) of shape [B, H, N, M]: a key is dropped where the uniform is below `p`
                          (stratified: [B, H, N, min(k, M)], by rank; by column: [B, H, M])
`AttentionDropout`        uniforms of shape [B, H, N, M]: a weight is dropped where the uniform is below `p`
`DropAttention`           the same; by column [B, H, M]; the uniform at the first key of a block of `span` keys decides
`GaussianNoise`           standard normals of shape [B, H, N, M]
`TemperatureNoise`        standard normals of shape [B, H]
`BlurSmoothing`           uniforms of shape [] ("batch"), [B] ("sample") or [H] ("head"): where sigma lies in its range
`DropHead`                uniforms of shape [B, H]
`HeadMask`                uniforms of shape [B, H]; for `choice="important"` what the heads are ranked by, [B, H] or [H]
`Compose`                 a list with the draws of its parts
`OneOf`                   a pair (uniform that chooses the part, list with the draws of all parts)
`Consistency`             None
========================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import bad_argument
from .schedules import PerHead
from .specs import (
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
from .specs.after_softmax import LEAST_SHARE

Array = NDArray[Any]
Pullback = Callable[[Array], Array]


class Step(NamedTuple):
    """Logits and visibility after a regulariser. `pullback` maps gradients after it to gradients before it."""

    logits: Array
    visible: Array
    pullback: Pullback


class Weights(NamedTuple):
    """Attention weights (or factors of them) and their pullback."""

    weights: Array
    pullback: Pullback


class Result(NamedTuple):
    """`output` = `weights` @ values; `gradients(d output)` gives the gradients of queries, keys, values and bias."""

    output: Array
    weights: Array
    gradients: Callable[[Array], tuple[Array, Array, Array, Array]]


# --- what a row sees -------------------------------------------------------------------------------------------------


def visibility(
    shape: tuple[int, ...],
    mask: Array | None = None,
    is_causal: bool = False,
    window: tuple[int, int] | None = None,
    blocks: tuple[Array, int] | None = None,
) -> Array:
    """Which keys each row sees, [B, H, N, M]: not hidden by a boolean or additive mask, and not in the future.

    With `window=(left, right)` row i sees the keys from `i - left` to `i + right`, -1 for all of a side. `blocks` are a
    boolean array [..., rows / size, keys / size] (rounded up) and the size: a row sees the keys of the visible blocks.
    """
    visible = np.ones(shape, dtype=bool)
    if mask is not None:
        if mask.dtype == bool:
            visible &= mask
        else:
            visible &= mask > np.finfo(mask.dtype).min / 2
    if is_causal:
        visible &= np.tri(shape[-2], shape[-1], dtype=bool)
    rows, columns = np.arange(shape[-2]), np.arange(shape[-1])
    if window is not None:
        left, right = window
        distance = columns - rows[:, None]
        visible &= ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))
    if blocks is not None:
        shown, size = blocks
        visible &= np.asarray(shown)[..., rows // size, :][..., columns // size]
    return visible


def masked_softmax(logits: Array, visible: Array, sinks: Array | None = None) -> Weights:
    """Softmax over the visible keys; a row that sees none gives zeros. Sinks (a logit per head) only join the sum."""
    shown = np.where(visible, logits, -np.inf)
    top = shown.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(np.isfinite(top), top, 0.0)
    powers = np.exp(shown - top)
    total = powers.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    weights = powers / np.where(total == 0, 1.0, total)
    return Weights(weights, lambda g: weights * (g - (weights * g).sum(axis=-1, keepdims=True)))


# --- logit level -----------------------------------------------------------------------------------------------------


def top_k(logits: Array, visible: Array, k: int) -> Array:
    """The `min(k, visible)` largest visible logits of each row, as a boolean array; ties go to the lower key."""
    order = np.argsort(np.where(visible, -logits, np.inf), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return np.asarray((rank < k) & visible)


def without_emptying(dropped: Array, logits: Array, visible: Array) -> Array:
    """`dropped`, but a row that would lose all visible keys keeps the one with the largest logit."""
    emptied = ~(visible & ~dropped).any(axis=-1, keepdims=True)
    return np.asarray(dropped & ~(emptied & top_k(logits, visible, 1)))


def hard_masking(
    logits: Array, visible: Array, uniform: Array, p: float, k: int, fill: str = "zero", by_rank: bool = False
) -> Step:
    """Each of the `k` largest logits of a row becomes 0 (or -inf) where its uniform is below `p`.

    A uniform belongs to a key, or, with `by_rank`, to a rank: the first one to the largest logit.
    """
    if by_rank:
        order = np.argsort(np.where(visible, -logits, np.inf), axis=-1, kind="stable")
        by_key = np.ones_like(logits)
        np.put_along_axis(by_key, order[..., : uniform.shape[-1]], uniform, axis=-1)
        uniform = by_key
    dropped = top_k(logits, visible, k) & (uniform < p)
    if fill == "zero":
        return Step(np.where(dropped, 0.0, logits), visible, lambda g: np.where(dropped, 0.0, g))
    return _hide(logits, visible, dropped)


def drop_key(logits: Array, visible: Array, uniform: Array, p: float) -> Step:
    """Hide each visible key from the row where its uniform is below `p`; uniforms [B, H, 1, M] serve all rows."""
    return _hide(logits, visible, visible & (uniform < p))


def _hide(logits: Array, visible: Array, dropped: Array) -> Step:
    dropped = without_emptying(dropped, logits, visible)
    return Step(logits, visible & ~dropped, lambda g: np.where(dropped, 0.0, g))


def gaussian_noise(logits: Array, visible: Array, normal: Array, sigma: float) -> Step:
    """Add independent `N(0, sigma^2)` to every visible logit."""
    return Step(logits + sigma * np.where(visible, normal, 0.0), visible, lambda g: g)


def temperature_noise(logits: Array, visible: Array, normal: Array, sigma: Any) -> Step:
    """Multiply the logits of each (sample, head) by `exp(sigma * z)`; the z are `normal`, [B, H]."""
    factor = np.exp(sigma * normal)[:, :, None, None]
    return Step(logits * factor, visible, lambda g: g * factor)


def gaussian_kernel(sigma: Array | float, width: int) -> Array:
    """Weights of the offsets -r..r, summing to 1, for each sigma; `sigma = 0` is the identity.

    >>> gaussian_kernel(0.0, 3)
    array([0., 1., 0.])
    """
    offsets = np.arange(width) - (width - 1) // 2
    variance = np.square(np.asarray(sigma, dtype=np.float64))[..., None]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # For sigma = 0 this is exp(-inf) = 0, except in the middle: there `where` replaces 0 / 0 by 1.
        weights = np.where(offsets == 0, 1.0, np.exp(-np.square(offsets) / (2 * variance)))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def blur_smoothing(
    logits: Array, visible: Array, sigma: Array | float, width: int, axes: str = "keys", edges: str = "zero"
) -> Step:
    """Convolve along the keys (and the queries) with a Gaussian; `sigma` broadcasts against [B, H]."""
    kernel = np.broadcast_to(gaussian_kernel(sigma, width), (*logits.shape[:2], width))
    step = _blur_axis(logits, visible, kernel, -1, edges)
    if axes == "keys":
        return step
    second = _blur_axis(step.logits, visible, kernel, -2, edges)
    return Step(second.logits, visible, lambda g: step.pullback(second.pullback(g)))


def _blur_axis(logits: Array, visible: Array, kernel: Array, axis: int, edges: str) -> Step:
    radius = kernel.shape[-1] // 2

    def convolve(x: Array, flipped: bool = False) -> Array:
        """sum_d kernel[d] x[j + d] (or x[j - d], the transpose), with zeros outside of the sequence."""
        padding = [(0, 0)] * x.ndim
        padding[axis] = (radius, radius)
        padded = np.pad(x, padding)
        length = x.shape[axis]
        total = np.zeros_like(x)
        for place in range(kernel.shape[-1]):
            start = 2 * radius - place if flipped else place
            window = np.take(padded, np.arange(start, start + length), axis=axis)
            total += kernel[:, :, place, None, None] * window
        return total

    share = convolve(visible.astype(np.float64)) if edges == "renormalize" else np.ones(1)
    share = np.where(visible, share, 1.0)
    blurred = convolve(np.where(visible, logits, 0.0)) / share
    return Step(
        np.where(visible, blurred, logits),
        visible,
        lambda g: np.where(visible, convolve(np.where(visible, g, 0.0) / share, flipped=True), 0.0),
    )


# --- weight and head level -------------------------------------------------------------------------------------------


def attention_dropout(weights: Array, uniform: Array, p: float) -> Weights:
    """Each weight becomes 0 where its uniform is below `p`; the others grow by `1 / (1 - p)`."""
    # At p = 1 no weight is kept, so the factor only has to be finite.
    factor = np.where(uniform < p, 0.0, 1.0 / np.maximum(1.0 - p, np.finfo(np.float64).tiny))
    return Weights(weights * factor, lambda g: g * factor)


def drop_attention(weights: Array, uniform: Array, p: float, span: int = 1) -> Weights:
    """Each weight becomes 0 where the uniform of its block is below `p`; each row is divided by the share that is left.

    A block has `span` keys, and its first one decides. The share is a constant: the pullback does not go through it.
    """
    dropped = uniform[..., np.arange(weights.shape[-1]) // span * span] < p
    total = weights.sum(axis=-1, keepdims=True)
    emptied = np.where(dropped, 0.0, weights).sum(axis=-1, keepdims=True) < LEAST_SHARE * total
    kept = ~dropped | (emptied & top_k(weights, np.ones_like(weights, dtype=bool), 1))
    left = np.where(kept, weights, 0.0).sum(axis=-1, keepdims=True)
    # A row that sees no key has no sum. Its weights are 0 anyway.
    factor = kept * (total / np.where(left == 0, 1.0, left))
    return Weights(weights * factor, lambda g: g * factor)


def head_factors(uniform: Array, p: float) -> Array:
    """The factor on the output of each (sample, head); if all heads would drop, that with the largest uniform stays."""
    kept = uniform >= p
    kept |= ~kept.any(axis=-1, keepdims=True) & (np.argmax(uniform, axis=-1)[:, None] == np.arange(uniform.shape[-1]))
    return np.asarray(kept * (uniform.shape[-1] / kept.sum(axis=-1, keepdims=True)))


def head_mask(scores: Array, count: int) -> Array:
    """0 for the `count` heads with the largest scores [..., H], 1 for the others; ties go to the lower head."""
    if count >= scores.shape[-1]:
        raise bad_argument("count", f"fewer than the {scores.shape[-1]} heads", count)
    return np.where(top_k(scores, np.ones_like(scores, dtype=bool), count), 0.0, 1.0)


# --- all together ----------------------------------------------------------------------------------------------------


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
        grouped = (q.shape[0], k.shape[1], groups, *k.shape[2:-1], -1)
        return scale * (d_products @ keys), d_keys.reshape(grouped).sum(2), d_values.reshape(grouped).sum(2), d

    return Result(weights @ values, weights, gradients)
