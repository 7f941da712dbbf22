"""Attention over projected queries, keys and values with the regularisers of one call.

There are two paths. The path on logits works for all regularisers. The path on blurred keys is for blur and
for whole heads: convolving a row of logits along the keys equals attending to convolved keys, so the backend's own
(fused, flash) attention does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from . import regularisers
from .leaves import Leaf
from .table import entry_of
from .visibility import Sight, both, is_same_for_all_rows, past

Tensor = Any


def work_dtype(*tensors: Tensor) -> str:
    """The dtype of logits, kernels and probabilities: float32, or float64 if an input is."""
    return "float64" if any("float64" in str(x.dtype) for x in tensors) else "float32"


def runs_on_blurred_keys(query: Tensor, value: Tensor, leaves: list[Leaf], sight: Sight) -> bool:
    """Whether the call can run as plain attention on blurred keys (and dropped heads after it).

    It cannot if rows see different keys, for example under a causal mask: then each row needs its own blur. It also
    cannot where `keras.ops.dot_product_attention` has limits on some backends: it rounds float64 to float32, and JAX
    needs values of the same size as the keys.
    """
    has_stages = all(entry_of(leaf.spec).stage is not None for leaf in leaves)
    shared_keys = is_same_for_all_rows(sight.visible, sight.is_causal) and sight.bias is None
    return has_stages and shared_keys and work_dtype(query) != "float64" and query.shape[-1] == value.shape[-1]


def attend_to_blurred_keys(
    query: Tensor, key: Tensor, value: Tensor, leaves: list[Leaf], sight: Sight, scale: float, flash: bool | None
) -> Tensor:
    """Output [B, N, H, E] for queries [B, N, H, D]; only if `runs_on_blurred_keys` is True."""
    dtype = work_dtype(query)
    visible, blind = sight.visible, None
    columns = None if visible is None else ops.broadcast_to(visible, _with_length(visible, ops.shape(key)[1]))
    # Keras keeps heads after positions: [B, H, 1, M] -> [B, M, H, 1].
    beside_keys = None if columns is None else ops.transpose(columns, (0, 3, 1, 2))
    q, k = query, ops.cast(key, dtype)
    for leaf in leaves:
        if entry_of(leaf.spec).stage == "blur" and leaf.spec.width > 1:
            kernel = regularisers.gaussian_kernel(leaf.sigma(dtype), leaf.spec.width)[:, None, :, None]
            k = regularisers.convolve_visible(k, beside_keys, kernel, 1, leaf.spec.edges)
            if leaf.spec.axes == "both":
                q = regularisers.convolve_visible(ops.cast(q, dtype), None, kernel, 1, leaf.spec.edges)
    if columns is not None:
        # A row that sees no key is shown all keys, and its output is set to 0: this gives no NaN, also in the gradient.
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
        if entry_of(leaf.spec).stage == "heads":
            output = output * ops.cast(entry_of(leaf.spec).apply(leaf, dtype)[:, None, :, None], output.dtype)
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
            logits, visible = entry_of(leaf.spec).apply(leaf, logits, visible)
    weights = regularisers.masked_softmax(logits, visible)
    for leaf in leaves:
        if leaf.spec.level == "weights":
            weights = entry_of(leaf.spec).apply(leaf, weights)
    for leaf in leaves:
        if leaf.spec.level == "heads":
            weights = weights * entry_of(leaf.spec).apply(leaf, weights.dtype)[:, :, None, None]
    return weights


def _with_length(visible: Tensor, columns: Any) -> tuple[Any, ...]:
    """The full shape of a key mask; its last dimension may be 1, which means one value for all keys."""
    return (*ops.shape(visible)[:-1], columns)
