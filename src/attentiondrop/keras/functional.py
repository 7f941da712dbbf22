"""Functions on tensors, without a layer: for eager code, `tf.function(jit_compile=True)` and `jax.jit`."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from ..errors import ArgumentError, ShapeError, bad_argument
from ..specs import Spec
from .call.attend import attend_on_logits, attend_to_blurred_keys, perturbed_weights, runs_on_blurred_keys, work_dtype
from .call.leaves import Leaf, LogitShape, leaves_of
from .call.visibility import as_bias, both, check_both_axes, is_additive, seen_by_all_rows, sight_of, split
from .rates import check_computable

Tensor = Any


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drop: Spec | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    *,
    training: bool = True,
    seed: Any = None,
    draws: Any = None,
    rates: Tensor | None = None,
) -> Tensor:
    """`keras.ops.dot_product_attention`, with attention perturbed as `drop` says.

    With `drop=None` or `training=False` it makes that call with the same arguments, except that an additive mask is
    passed as a bias: Keras would read it as a boolean one. Otherwise, rows that see no key give zeros.

    Args:
        query: [B, N, H, D].
        key: [B, M, Hk, D], H a multiple of Hk.
        value: [B, M, Hk, E].
        drop: what to do to the attention. A `Consistency` inside is ignored; `consistency_loss` computes it.
        bias: added to the logits, broadcastable to [B, H, N, M]; -inf (or close to it) hides a key.
        mask: boolean (True: visible) or additive, broadcastable to [B, H, N, M].
        scale: of the dot products; `1 / sqrt(D)` by default.
        is_causal: row i sees the keys j <= i.
        flash_attention: as in Keras, for the unperturbed call and for blur. The other regularisers compute on the
            logits and ignore it.
        training: whether the perturbation acts.
        seed: an int (the same draws in every call), a `keras.random.SeedGenerator`, a tensor of two integers, or None
            for the global generator of Keras.
        draws: the draws themselves, in the form that `attentiondrop.reference` takes, instead of a seed.
        rates: the numbers p, sigma, sigma_max, sigma_min of the spec (and the weight of a consistency part) in one
            tensor, in the order of its parts and fields. With it, a compiled function takes other rates without being
            compiled again.

    Returns:
        [B, N, H, E] in the dtype of the queries.

    Example:
        >>> import attentiondrop as ad
        >>> q = k = v = keras.random.normal((2, 10, 4, 8))
        >>> tuple(attention(q, k, v, ad.HardMasking(p=0.1, k=3), is_causal=True, seed=0).shape)
        (2, 10, 4, 8)
    """
    check_spec("drop", drop, optional=True)
    if drop is None or not training:
        if is_additive(mask):
            bias, mask, is_causal = as_bias(mask, bias, is_causal, query, key), None, False
        return ops.dot_product_attention(
            query,
            key,
            value,
            bias=bias,
            mask=mask,
            scale=scale,
            is_causal=is_causal,
            flash_attention=flash_attention,
        )
    query, key, value = (_tensor(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    repeats = _check_heads(query, key, value)
    if repeats != 1:
        key, value = (ops.repeat(x, repeats, axis=2) for x in (key, value))
    batch, rows, heads, depth = ops.shape(query)
    check_numbers("drop", drop)
    shape = LogitShape(batch, heads, rows, ops.shape(key)[1])
    leaves = leaves_of(drop, shape, seed, draws, rates)
    sight = sight_of(mask, bias, is_causal, shape)
    check_both_axes(leaves, sight.visible, is_causal)
    scale = depth**-0.5 if scale is None else scale
    if runs_on_blurred_keys(query, value, leaves, sight):
        return attend_to_blurred_keys(query, key, value, leaves, sight, scale, flash_attention)
    return attend_on_logits(query, key, value, leaves, sight, scale)[0]


def attention_weights(
    logits: Tensor,
    drop: Spec | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    training: bool = True,
    seed: Any = None,
    draws: Any = None,
    rates: Tensor | None = None,
) -> Tensor:
    """The paper's interface as a function: from logits [B, H, N, M] to attention weights, in the dtype of the logits.

    A logit of -inf, or of half of the lowest number, hides its key. The other arguments are those of `attention`. With
    `drop=None` or `training=False` it is a softmax over the visible keys.

    Example:
        >>> import attentiondrop as ad
        >>> weights = attention_weights(keras.random.normal((2, 4, 10, 10)), ad.BlurSmoothing(sigma_max=0.5), seed=0)
        >>> bool(keras.ops.all(keras.ops.abs(keras.ops.sum(weights, axis=-1) - 1) < 1e-5))
        True
    """
    check_spec("drop", drop, optional=True)
    logits, shape = as_logits(logits)
    leaves = []
    if drop is not None and training:
        check_numbers("drop", drop)
        leaves = leaves_of(drop, shape, seed, draws, rates)
    return weights_with(leaves, logits, mask, is_causal)


def as_logits(logits: Any) -> tuple[Tensor, LogitShape]:
    """The argument `logits` as a tensor, and its shape."""
    logits = _tensor("logits", logits)
    if len(logits.shape) != 4:
        raise ShapeError(f"logits: expected [batch, heads, queries, keys], received {list(logits.shape)}")
    return logits, LogitShape(*ops.shape(logits))


def weights_with(leaves: list[Leaf], logits: Tensor, mask: Any, is_causal: bool) -> Tensor:
    """Attention weights with the regularisers of one call; a softmax over the visible keys if there are none."""
    sight = sight_of(mask, None, is_causal, LogitShape(*ops.shape(logits)))
    check_both_axes(leaves, sight.visible, is_causal)
    # Hand-written layers mask the logits themselves. What they hid, no perturbation may show.
    unhidden, work = split(logits, "logits")
    if any(leaf.spec.mixes_rows for leaf in leaves):
        unhidden, work = seen_by_all_rows(unhidden, work)
    sight = sight._replace(visible=both(sight.visible, unhidden))
    weights = perturbed_weights(ops.cast(work, work_dtype(logits)), leaves, sight)
    return ops.cast(weights, logits.dtype)


def check_spec(name: str, drop: Any, optional: bool = False) -> None:
    """Raise unless `drop` is a spec (not its text), or None if `optional`."""
    if not (isinstance(drop, Spec) or (optional and drop is None)):
        raise bad_argument(name, "a spec such as attentiondrop.HardMasking()" + ", or None" * optional, drop)


def check_numbers(name: str, drop: Spec) -> None:
    """Refuse schedules: a function does not know the progress of training, so they must be evaluated before."""
    check_computable(drop)
    for leaf in drop.leaves():
        for field, schedule in leaf.scheduled().items():
            raise bad_argument(f"{name}.{field}", "a number (spec.at(progress) evaluates schedules)", str(schedule))


def _tensor(name: str, x: Any) -> Tensor:
    if isinstance(x, keras.KerasTensor):
        raise ArgumentError(
            f"{name}: expected a tensor with values, received a KerasTensor: a functional model would draw once, when "
            "it is built, and never again; use a layer (AttentionDrop, MultiHeadAttention) there"
        )
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if "float" not in dtype:
        raise bad_argument(name, "a floating-point tensor", f"dtype {dtype}")
    return x


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Raise unless the shapes fit; return how many query heads share one key head."""
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        raise ShapeError(f"query, key, value: expected [batch, positions, heads, size], received {shapes}")
    (batch, _, heads, size), (key_batch, keys, key_heads, key_size), (value_batch, values, value_heads, _) = shapes
    equal = [(size, key_size), (keys, values), (key_heads, value_heads)]
    # A single sample of keys or values may serve all samples, as in `keras.ops.einsum`.
    equal += [(batch, other) for other in (key_batch, value_batch) if other != 1]
    # While a graph is traced, sizes may be unknown (None), but not the number of heads.
    fits = all(None in pair or pair[0] == pair[1] for pair in equal) and heads and key_heads
    if not fits or heads % key_heads != 0:
        raise ShapeError(
            "query, key, value: expected [B, N, H, D], [B, M, Hk, D], [B, M, Hk, E] with H a multiple of Hk, "
            f"received {shapes}"
        )
    return int(heads // key_heads)
