"""Each regulariser as a differentiable function of logits, visibility and draws, on `keras.ops`.

It mirrors `attentiondrop.reference` and `attentiondrop.torch.eager.regularisers`. `visible` is a boolean tensor that
broadcasts against the logits [B, H, N, M], or None if every key is visible. Rates are floats or 0-dim tensors.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

Tensor = Any


def top_k(logits: Tensor, visible: Tensor | None, k: int) -> Tensor:
    """The `min(k, visible)` largest visible logits of each row, as a boolean tensor; ties go to the lower key."""
    shown = _shown(logits, visible)
    columns = shown.shape[-1]
    if columns is not None and k >= columns:
        everything = ops.ones_like(shown, dtype="bool")
        return everything if visible is None else ops.logical_and(everything, visible)
    selected = _in_rounds(shown, k) if k <= _MOST_ROUNDS else _by_threshold(shown, k)
    return selected if visible is None else ops.logical_and(selected, visible)


#: Up to this k, the k largest are found by taking the largest k times. XLA's top-k is much slower than that on a CPU
#: (docs/keras.md); torch has a fast one.
_MOST_ROUNDS = 0 if keras.backend.backend() == "torch" else 16


def _in_rounds(shown: Tensor, k: int) -> Tensor:
    selected = first_largest(shown)
    for _ in range(k - 1):
        left = ops.where(selected, ops.full_like(shown, -np.inf), shown)
        selected = ops.logical_or(selected, first_largest(left))
    return selected


def _by_threshold(shown: Tensor, k: int) -> Tensor:
    # While a graph is traced, the length of the rows may be unknown. Padding makes sure that they have k entries.
    known = shown.shape[-1] is not None
    ranked = shown if known else ops.pad(shown, [[0, 0]] * 3 + [[0, k]], constant_values=-np.inf)
    # Of equal logits, torch's top_k may pick any. So only the threshold is taken from it, and ties go to the lower key.
    threshold = ops.top_k(ranked, k)[0][..., -1:]
    above = shown > threshold
    level = shown == threshold
    room = k - ops.sum(ops.cast(above, "int32"), axis=-1, keepdims=True)
    filled = ops.cumsum(ops.cast(level, "int32"), axis=-1) <= room
    return ops.logical_or(above, ops.logical_and(level, filled))


def first_largest(x: Tensor) -> Tensor:
    """The largest entry along the last axis, as a boolean tensor; of equal ones the first."""
    length = ops.shape(x)[-1]
    place = ops.arange(length, dtype="int32")
    level = x == ops.max(x, axis=-1, keepdims=True)
    first = ops.min(ops.where(level, place, ops.full_like(place, length)), axis=-1, keepdims=True)
    return place == first


def without_emptying(dropped: Tensor, logits: Tensor, visible: Tensor | None) -> Tensor:
    """`dropped`, but a row that would lose all visible keys keeps the one with the largest logit."""
    emptied = ops.logical_not(ops.any(_kept(dropped, visible), axis=-1, keepdims=True))
    largest = first_largest(_shown(logits, visible))
    return ops.logical_and(dropped, ops.logical_not(ops.logical_and(emptied, largest)))


def hard_masking(
    logits: Tensor, visible: Tensor | None, uniform: Tensor, p: Any, k: int, fill: str
) -> tuple[Tensor, Tensor | None]:
    """Each of the `k` largest logits of a row becomes 0 (or -inf) where its uniform is below `p`."""
    dropped = ops.logical_and(top_k(logits, visible, k), uniform < p)
    if fill == "zero":
        return ops.where(dropped, ops.zeros_like(logits), logits), visible
    return _hide(logits, visible, dropped)


def drop_key(logits: Tensor, visible: Tensor | None, uniform: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    """Hide each visible key from the row where its uniform is below `p`; uniforms [B, H, 1, M] serve all rows."""
    dropped = ops.broadcast_to(uniform < p, ops.shape(logits))
    return _hide(logits, visible, dropped if visible is None else ops.logical_and(dropped, visible))


def _hide(logits: Tensor, visible: Tensor | None, dropped: Tensor) -> tuple[Tensor, Tensor]:
    return logits, _kept(without_emptying(dropped, logits, visible), visible)


def gaussian_noise(logits: Tensor, normal: Tensor, sigma: Any) -> Tensor:
    """Add independent `N(0, sigma^2)` to every logit; the values of hidden ones are never used."""
    return logits + sigma * normal


def temperature_noise(logits: Tensor, normal: Tensor, sigma: Any) -> Tensor:
    """Multiply the logits of each (sample, head) by `exp(sigma * z)`; the z are `normal`, [B, H]."""
    return logits * ops.exp(sigma * normal)[:, :, None, None]


def gaussian_kernel(sigma: Tensor, width: int) -> Tensor:
    """Weights of the offsets -r..r along a new last axis, summing to 1; `sigma = 0` is the identity."""
    offsets = np.arange(width) - (width - 1) // 2
    # The floor keeps d^2 / variance finite. It changes no result: exp(-d^2 / variance) is 0 for such a variance.
    floor = float(np.finfo("float64" if "float64" in str(sigma.dtype) else "float32").tiny) * 2 * width**2
    variance = ops.expand_dims(_at_least(ops.square(sigma), floor), -1)
    squares = ops.cast(ops.convert_to_tensor((offsets**2).astype("float32")), sigma.dtype)
    # At offset 0 this is exp(-0) = 1 for every variance.
    weights = ops.exp(-squares / (2 * variance))
    return weights / ops.sum(weights, axis=-1, keepdims=True)


def convolve(x: Tensor, kernel: Tensor, axis: int) -> Tensor:
    """`sum_d kernel[d] x[j + d]` along `axis`, zeros outside. `kernel[..., d]` broadcasts against `x`."""
    width = kernel.shape[-1]
    radius = width // 2
    axis = axis % len(x.shape)
    padding = [[0, 0] for _ in x.shape]
    padding[axis] = [radius, radius]
    padded = ops.pad(x, padding)
    length = ops.shape(x)[axis]
    window = [slice(None)] * len(x.shape)
    total = None
    for place in range(width):
        window[axis] = slice(place, place + length)
        term = padded[tuple(window)] * kernel[..., place]
        total = term if total is None else total + term
    return total


def blur_smoothing(logits: Tensor, visible: Tensor | None, kernel: Tensor, axes: str, edges: str) -> Tensor:
    """Convolve [B, H, N, M] along the keys (and the queries); hidden logits count as 0 or are left out (`edges`)."""
    if visible is not None:
        visible = ops.broadcast_to(visible, ops.shape(logits))
    for axis in (-1, -2) if axes == "both" else (-1,):
        logits = convolve_visible(logits, visible, kernel[:, :, None, None], axis, edges)
    return logits


def convolve_visible(x: Tensor, visible: Tensor | None, kernel: Tensor, axis: int, edges: str) -> Tensor:
    """`convolve` over visible entries. Hidden ones count as 0, or are left out and the other weights rescaled."""
    shown = x if visible is None else ops.where(visible, x, ops.zeros_like(x))
    blurred = convolve(shown, kernel, axis)
    if edges == "zero":
        return blurred
    if visible is None:
        flat = [1] * len(x.shape)
        flat[axis] = ops.shape(x)[axis]
        return blurred / convolve(ops.ones(flat, dtype=x.dtype), kernel, axis)
    share = convolve(ops.cast(visible, x.dtype), kernel, axis)
    return blurred / ops.where(visible, share, ops.ones_like(share))


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys; a row that sees none gives zeros, without NaN in results or gradients."""
    if visible is None:
        return _softmax(logits)
    seeing = ops.any(visible, axis=-1, keepdims=True)
    shown = ops.logical_or(visible, ops.logical_not(seeing))
    weights = _softmax(ops.where(shown, logits, ops.full_like(logits, -np.inf)))
    return ops.where(seeing, weights, ops.zeros_like(weights))


def _softmax(logits: Tensor) -> Tensor:
    # Keras warns about a softmax over one entry, which is no mistake for attention to one key.
    return ops.exp(logits - logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def attention_dropout(weights: Tensor, uniform: Tensor, p: Any) -> Tensor:
    """Each weight becomes 0 where its uniform is below `p`; the others grow by `1 / (1 - p)`."""
    kept = 1.0 - p
    # At p = 1 no weight is kept, so the factor only has to be finite.
    floored = max(kept, 2.0**-24) if isinstance(kept, float) else _at_least(kept, 2.0**-24)
    return ops.where(ops.less(uniform, p), ops.zeros_like(weights), weights / floored)


def drop_attention(weights: Tensor, dropped: Tensor, least_share: float) -> Tensor:
    """The `dropped` weights become 0, and each row is divided by the share that is left, which has no gradient.

    `dropped` is [B, H, N, M], or [B, H, 1, M] for all rows. A row with less than `least_share` left keeps its largest.
    """
    known = ops.stop_gradient(weights)
    zeros = ops.zeros_like(known)
    total = ops.sum(known, axis=-1, keepdims=True)
    left = ops.sum(ops.where(dropped, zeros, known), axis=-1, keepdims=True)
    saved = ops.logical_and(left < least_share * total, first_largest(known))
    kept = ops.logical_or(ops.logical_not(dropped), saved)
    left = ops.sum(ops.where(kept, known, zeros), axis=-1, keepdims=True)
    # A row that sees no key has no sum, and weights of 0.
    share = total / ops.where(left == 0, ops.ones_like(left), left)
    return weights * ops.where(kept, share, zeros)


def by_block(below: Tensor, span: int) -> Tensor:
    """Decisions about single keys (the last dimension), replaced by that about the first key of each `span` keys."""
    if span == 1:
        return below
    keys = ops.arange(ops.shape(below)[-1], dtype="int32")
    return ops.take(below, keys // span * span, axis=-1)


def head_factors(uniform: Tensor, p: Any, dtype: str) -> Tensor:
    """The factor on the output of each (sample, head); if all heads would drop, that with the largest uniform stays."""
    kept = uniform >= p
    none_kept = ops.logical_not(ops.any(kept, axis=-1, keepdims=True))
    kept = ops.cast(ops.logical_or(kept, ops.logical_and(none_kept, first_largest(uniform))), dtype)
    return kept * (ops.cast(ops.shape(uniform)[-1], dtype) / ops.sum(kept, axis=-1, keepdims=True))


def _shown(logits: Tensor, visible: Tensor | None) -> Tensor:
    """The logits for selecting the largest: without gradients, and -inf where hidden."""
    logits = ops.stop_gradient(logits)
    return logits if visible is None else ops.where(visible, logits, ops.full_like(logits, -np.inf))


def _kept(dropped: Tensor, visible: Tensor | None) -> Tensor:
    kept = ops.logical_not(dropped)
    return kept if visible is None else ops.logical_and(visible, kept)


def _at_least(x: Tensor, floor: float) -> Tensor:
    """The maximum of `x` and `floor`. (`ops.maximum` would round float64 to float32 on JAX and torch.)"""
    return ops.where(x < floor, ops.full_like(x, floor), x)
