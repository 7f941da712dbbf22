"""What each regulariser computes, with its pullback: one short function for each definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import bad_argument
from ..specs.after_softmax import LEAST_SHARE

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
