"""Attention over projected queries, keys and values with the regularisers of one call.

Two paths. On the logits: any regulariser. On blurred keys: blur alone, since convolving a logit row along the keys is
attending to convolved keys; then the backend's own (fused, flash) attention does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from ..specs import AttentionDropout, BlurSmoothing, DropHead, DropKey, GaussianNoise, HardMasking
from . import regularisers
from .leaves import Leaf
from .visibility import both, is_same_for_all_rows, past

Tensor = Any


class Sight(NamedTuple):
    """What hides and shifts logits; `visible` and `bias` are None, or have 4 dimensions that fit [B, H, N, M]."""

    visible: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False


def work_dtype(*tensors: Tensor) -> str:
    """Logits, kernels and probabilities are float32 or wider."""
    return "float64" if any("float64" in str(x.dtype) for x in tensors) else "float32"


def runs_on_blurred_keys(query: Tensor, value: Tensor, leaves: list[Leaf], sight: Sight) -> bool:
    """Whether plain attention on blurred keys (and whole heads dropped after it) is all that is asked for.

    Not where rows see different keys, causality included: there each row has a kernel of its own. Not where
    `keras.ops.dot_product_attention` has limits on some backends: it rounds float64 to float32 on its way, and JAX
    wants values of the size of the keys.
    """
    blurs_and_heads = all(isinstance(leaf.spec, BlurSmoothing | DropHead) for leaf in leaves)
    shared_keys = is_same_for_all_rows(sight.visible, sight.is_causal) and sight.bias is None
    return blurs_and_heads and shared_keys and work_dtype(query) != "float64" and query.shape[-1] == value.shape[-1]


def attend_to_blurred_keys(
    query: Tensor, key: Tensor, value: Tensor, leaves: list[Leaf], sight: Sight, scale: float, flash: bool | None
) -> Tensor:
    """Output [B, N, H, E] for queries [B, N, H, D]; `runs_on_blurred_keys` has said yes."""
    dtype = work_dtype(query)
    visible, blind = sight.visible, None
    columns = None if visible is None else ops.broadcast_to(visible, _with_length(visible, ops.shape(key)[1]))
    # Keras keeps heads after positions: [B, H, 1, M] -> [B, M, H, 1].
    beside_keys = None if columns is None else ops.transpose(columns, (0, 3, 1, 2))
    q, k = query, ops.cast(key, dtype)
    for leaf in leaves:
        if isinstance(leaf.spec, BlurSmoothing) and leaf.spec.width > 1:
            kernel = regularisers.gaussian_kernel(leaf.sigma(dtype), leaf.spec.width)[:, None, :, None]
            k = regularisers.convolve_visible(k, beside_keys, kernel, 1, leaf.spec.edges)
            if leaf.spec.axes == "both":
                q = regularisers.convolve_visible(ops.cast(q, dtype), None, kernel, 1, leaf.spec.edges)
    if columns is not None:
        # A blind row is shown everything and then zeroed: no NaN, neither here nor in the gradient.
        blind = ops.logical_not(ops.any(columns, axis=-1, keepdims=True))
        visible = ops.logical_or(columns, blind)
    output = ops.dot_product_attention(
        ops.cast(q, query.dtype),
        ops.cast(k, key.dtype),
        value,
        mask=visible,
        scale=scale,
        flash_attention=flash,
    )
    if blind is not None:
        output = ops.where(ops.transpose(blind, (0, 3, 1, 2)), ops.zeros_like(output), output)
    for leaf in leaves:
        if isinstance(leaf.spec, DropHead):
            output = output * ops.cast(head_factors(leaf, dtype)[:, None, :, None], output.dtype)
    return output


def attend_on_logits(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    leaves: list[Leaf],
    sight: Sight,
    scale: float,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [B, N, H, E] and weights [B, H, N, M] in the dtype of the queries, the weights before `dropout`."""
    dtype = work_dtype(query)
    logits = ops.einsum("bnhd,bmhd->bhnm", ops.cast(query, dtype) * scale, ops.cast(key, dtype))
    weights = perturbed_weights(logits, leaves, sight)
    combined = weights if dropout is None else dropout(weights)
    output = ops.einsum("bhnm,bmhe->bnhe", ops.cast(combined, dtype), ops.cast(value, dtype))
    return ops.cast(output, query.dtype), ops.cast(weights, query.dtype)


def perturbed_weights(logits: Tensor, leaves: list[Leaf], sight: Sight) -> Tensor:
    """From logits to attention weights through every regulariser: logit level, softmax, weight level, head level."""
    visible = sight.visible
    if sight.bias is not None:
        logits = logits + ops.cast(sight.bias, logits.dtype)
    if sight.is_causal:
        visible = both(visible, past(*ops.shape(logits)[-2:]))
    for leaf in leaves:
        if leaf.spec.level == "logits":
            logits, visible = perturb_logits(leaf, logits, visible)
    weights = regularisers.masked_softmax(logits, visible)
    for leaf in leaves:
        if isinstance(leaf.spec, AttentionDropout):
            weights = regularisers.attention_dropout(weights, leaf.draw, leaf.rate("p", weights.dtype))
    for leaf in leaves:
        if isinstance(leaf.spec, DropHead):
            weights = weights * head_factors(leaf, weights.dtype)[:, :, None, None]
    return weights


def perturb_logits(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One logit-level regulariser with its fields taken from the spec."""
    spec = leaf.spec
    if isinstance(spec, HardMasking):
        return regularisers.hard_masking(logits, visible, leaf.draw, leaf.rate("p"), spec.k, spec.fill)
    if isinstance(spec, BlurSmoothing):
        kernel = regularisers.gaussian_kernel(leaf.sigma(logits.dtype), spec.width)
        return regularisers.blur_smoothing(logits, visible, kernel, spec.axes, spec.edges), visible
    if isinstance(spec, GaussianNoise):
        normal = ops.cast(leaf.draw, logits.dtype)
        return regularisers.gaussian_noise(logits, normal, leaf.rate("sigma", logits.dtype)), visible
    if isinstance(spec, DropKey):
        return regularisers.drop_key(logits, visible, leaf.draw, leaf.rate("p"))
    raise TypeError(f"no Keras function for the logit-level spec {spec}")


def head_factors(leaf: Leaf, dtype: Any) -> Tensor:
    """The factors of a `DropHead` leaf: [B, H]."""
    return regularisers.head_factors(leaf.draw, leaf.rate("p"), dtype)


def _with_length(visible: Tensor, columns: Any) -> tuple[Any, ...]:
    """The shape of a key mask whose last dimension may be 1, which is one value for all keys."""
    return (*ops.shape(visible)[:-1], columns)
